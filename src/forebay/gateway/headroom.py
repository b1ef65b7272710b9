"""Tells an account what its provider says of its quota, with each answer.

Only places that share a quota are asked about it; all other requests pay one comparison.
"""

from forebay.core.rate_limits import read_quota_used
from forebay.gateway.policy.account import Account
from forebay.net.answer import Answer


def hear_quota(account: Account, answer: Answer, now: float, wall_s: float) -> None:
    """What stands in the head of an answer that has come just now.

    Args:
        now: the loop's time.
        wall_s: Unix time, roughly; an answer's own `Date` goes before it.
    """
    found = read_quota_used(answer.headers, wall_s)
    if found is not None:
        used, reset_s = found
        account.say_used(used, now, now + reset_s)
