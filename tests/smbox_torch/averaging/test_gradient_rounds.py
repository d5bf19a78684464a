from __future__ import annotations

import threading

import pytest
import torch

from smbox.errors import ConfigError, StepMismatchError
from smbox_torch.averaging.gradient_rounds import GradientRounds
from smbox_torch.averaging.host_mean import REDUCED, WRITTEN, HostMean
from smbox_torch.averaging.mean import Follow
from smbox_torch.averaging.packed import share
from smbox_torch.world import World

SEEDING = threading.Lock()  # torch has one generator for all threads


def model(world: World, seed: int = 0) -> torch.nn.Sequential:
    with SEEDING:
        torch.manual_seed(seed)
        net = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4), torch.nn.Linear(4, 1)
        )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(world.rank)
    return net


def mean_of(world: World, parameters, buffers=(), bucket_nbytes: int = 64) -> HostMean:
    options = {"name": "g", "bucket_nbytes": bucket_nbytes, "timeout_s": 60.0}
    return HostMean(list(parameters), list(buffers), world, **options)


def sync(world: World, net: torch.nn.Module) -> GradientRounds:
    parameters = list(net.parameters())
    share(parameters, world, "begin", 60.0)
    mean = mean_of(world, parameters, net.buffers(), 128)
    return GradientRounds(parameters, mean, torch.optim.SGD(parameters), model=net)


def rounds(world: World, *parameters: torch.Tensor, bucket_nbytes: int = 64) -> GradientRounds:
    return GradientRounds(
        parameters, mean_of(world, parameters, (), bucket_nbytes), torch.optim.SGD(parameters)
    )


def batch(rank: int, size: int = 5) -> torch.Tensor:
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(rank))


def test_all_begin_as_rank_0_and_backward_ends_with_the_mean(run_ranks):
    def work(world: World):
        net = model(world)
        synced = sync(world, net)
        parameters = [p.detach().clone() for p in net.parameters()]
        net(batch(world.rank)).square().mean().backward()
        gradients = [p.grad.clone() for p in net.parameters()]
        synced.close()
        return parameters, gradients

    results = run_ranks(3, work)
    alone = model(World())
    net_loss = sum(alone(batch(rank)).square().mean() for rank in range(3)) / 3
    net_loss.backward()
    for parameters, gradients in results:
        for mine, expected in zip(parameters, alone.parameters(), strict=True):
            assert torch.equal(mine, expected)
            assert mine.numpy().tobytes() == expected.detach().numpy().tobytes()
        for mine, first, expected in zip(
            gradients, results[0][1], alone.parameters(), strict=True
        ):
            assert torch.equal(mine, first)
            torch.testing.assert_close(mine, expected.grad, rtol=1e-6, atol=1e-5)


def test_buckets_are_announced_and_reduced_while_backward_runs(run_ranks, worlds):
    def work(world: World):
        net, seen = model(world), []
        mean = mean_of(world, net.parameters(), (), 128)
        share(list(net.parameters()), world, "begin", 60.0)
        optimizer = torch.optim.SGD(net.parameters())
        synced = GradientRounds(list(net.parameters()), mean, optimizer)

        def look(*_: object) -> None:
            both = WRITTEN, REDUCED
            seen.append([mean.rendezvous.counters(each)[world.rank] for each in both])

        net[1].register_full_backward_pre_hook(look)
        net(batch(0)).square().mean().backward()
        look()
        synced.close()
        return seen

    for (announced, _), (total, reduced) in run_ranks(2, work):
        assert 0 < announced < total == reduced
    ((announced, reduced), _) = work(worlds(1, 1)[0])  # alone: nobody has to announce it, too
    assert reduced == announced


def test_gradients_are_the_row_itself_and_are_not_copied_again(run_ranks):
    def work(world: World):
        net = model(world)
        mean = mean_of(world, net.parameters(), (), 128)
        share(list(net.parameters()), world, "begin", 60.0)
        optimizer = torch.optim.SGD(net.parameters())
        synced = GradientRounds(list(net.parameters()), mean, optimizer)
        net(batch(0)).square().mean().backward()
        before = [p.grad.data_ptr() for p in net.parameters()]
        net.zero_grad(set_to_none=False)
        net(batch(1)).square().mean().backward()
        after = [p.grad.data_ptr() for p in net.parameters()]
        first = before[0] - mean.rows.bucket(world.rank, 0).data_ptr()
        synced.close()
        return before == after, abs(first) < 1 << 16

    assert run_ranks(2, work) == [(True, True)] * 2


def test_a_parameter_that_only_others_used_has_their_share_and_one_that_nobody_did_has_none(
    run_ranks,
):
    def work(world: World):
        used = torch.nn.Parameter(torch.ones(3))
        some, none = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
        synced = rounds(world, used, some, none)
        found = []
        for _ in range(2):
            loss = used.sum() * 2 + (some.sum() * 4 if world.rank == 1 else 0)
            used.grad = some.grad = none.grad = None
            loss.backward()
            found.append((used.grad.tolist(), some.grad.tolist(), none.grad))
        synced.close()
        return found

    assert run_ranks(2, work) == [[([2.0] * 3, [2.0] * 2, None)] * 2] * 2


def test_a_rank_whose_loss_touches_nothing_still_takes_part(run_ranks):
    def work(world: World):
        weight = torch.nn.Parameter(torch.ones(3))
        synced = rounds(world, weight)
        if world.rank == 0:
            weight.sum().backward()
        else:
            synced.finish()
        gradient = weight.grad.tolist()
        synced.close()
        return gradient

    assert run_ranks(2, work) == [[0.5] * 3] * 2


def test_mixed_dtypes_and_tied_weights(run_ranks):
    def work(world: World):
        wide = torch.nn.Parameter(torch.ones(3))
        low = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        synced = rounds(world, wide, low, bucket_nbytes=4096)
        (wide.sum() * (world.rank + 1) + low.sum() * (world.rank + 2)).float().backward()
        found = (wide.grad.tolist(), low.grad.dtype, low.grad.tolist())
        synced.close()
        return found

    assert run_ranks(2, work) == [([1.5] * 3, torch.bfloat16, [2.5] * 3)] * 2


def test_buffers_follow_rank_0_once_backward_is_over(run_ranks):
    def work(world: World):
        net = torch.nn.BatchNorm1d(4)
        synced = sync(world, net)
        net(torch.full((2, 4), float(world.rank + 1))).sum().backward()
        found = net.running_mean.tolist(), int(net.num_batches_tracked)
        synced.close()
        return found

    first, second = run_ranks(2, work)
    assert first == second
    assert first[1] == 1
    assert first[0] == pytest.approx([0.1] * 4)


def test_sparse_gradients_are_refused(run_ranks):
    def work(world: World):
        net = torch.nn.Embedding(4, 2, sparse=True)
        synced = sync(world, net)
        with pytest.raises(ConfigError, match="sparse"):
            net(torch.tensor([1])).sum().backward()
        synced.close()

    run_ranks(1, work)


def test_a_rank_that_leaves_is_named_in_backward(run_ranks):
    def work(world: World):
        net = model(world)
        synced = sync(world, net)
        if world.rank == 1:
            synced.close()
            return
        with pytest.raises(StepMismatchError, match="rank 1 finished after 0 steps"):
            net(batch(0)).square().mean().backward()
        synced.close()

    run_ranks(2, work)


def test_a_second_gradient_before_the_first_was_averaged_is_an_error(run_ranks):
    def work(world: World):
        weight = torch.nn.Parameter(torch.ones(3))
        synced = rounds(world, weight)
        weight.register_post_accumulate_grad_hook(fail)
        for error, cure in ((ZeroDivisionError, None), (ConfigError, "use_reentrant=False")):
            with pytest.raises(error, match=cure):
                weight.sum().backward()
        synced.close()

    def fail(_: torch.Tensor) -> None:
        raise ZeroDivisionError

    run_ranks(1, work)


def test_local_gradients_after_a_skipped_step_are_no_mean(run_ranks):
    def work(world: World):
        net = model(world)
        synced = sync(world, net)
        net(batch(world.rank)).square().mean().backward()
        net.zero_grad()  # as a scaler does that met an infinity: no step
        synced.enabled = False
        net(batch(world.rank)).square().mean().backward()
        synced.enabled = True
        assert not synced.is_synced
        synced.finish()
        gradients = [p.grad.clone() for p in net.parameters()]
        synced.close()
        return gradients

    for first, second in zip(*run_ranks(2, work), strict=True):
        assert torch.equal(first, second)


def test_gradients_that_grew_locally_are_no_mean(run_ranks):
    def work(world: World) -> list[float]:
        weight = torch.nn.Parameter(torch.ones(2))
        synced = rounds(world, weight)
        weight.sum().backward()
        synced.enabled = False
        (weight.sum() * world.rank).backward()  # in place, on top of the mean
        synced.enabled = True
        assert not synced.is_synced
        synced.finish()
        synced.close()
        return weight.grad.tolist()

    assert run_ranks(2, work) == [[1.5] * 2] * 2


def test_a_rank_that_has_joined_again_did_not_do_more_steps(run_ranks):
    is_again = threading.Event()

    def work(world: World) -> tuple[Follow, bool | None]:
        mean = mean_of(world, [torch.ones(2)])
        mean.join()
        found = mean.follow(lambda: False)
        if world.rank == 1:
            mean.join()
            is_again.set()
        is_again.wait(60.0)
        leads = mean.is_leader()
        mean.close(steps=0)
        return found, leads

    assert run_ranks(2, work) == [(Follow.END, None)] * 2


def test_a_round_moves_every_gradient_there_and_back(worlds):
    synced = rounds(worlds(1, 1)[0], torch.nn.Parameter(torch.ones(32)))
    synced.finish()
    assert synced.recorder.snapshot().nbytes == 2 * 4 * 32
    synced.close()


def test_a_backward_that_was_broken_off_can_be_closed(worlds):
    net = model(World())
    synced = sync(worlds(1, 1)[0], net)
    breaking = net[0].weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        net(batch(0)).sum().backward()
    breaking.remove()
    with pytest.raises(ConfigError, match="synchronize"):
        net(batch(0)).sum().backward()
    synced.finish()
    net.zero_grad()
    net(batch(0)).sum().backward()
    alone = model(World())
    alone(batch(0)).sum().backward()
    for mine, expected in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.equal(mine.grad, expected.grad)
    synced.close()
