"""Chaos: clients that count, while node, clients and links are killed by a seeded schedule.

    python -m smbox.testing.chaos --minutes 10 --seed 2026

``plan`` says what each change adds where, ``log`` what a client meant and what was
acknowledged, ``worker`` is the client, ``proxy`` the link that can be cut, ``processes`` the
processes, ``harness`` the schedule, ``verdict`` the sums at the end.
"""
