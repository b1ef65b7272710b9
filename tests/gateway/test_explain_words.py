"""What is told of a choice, in words that hold."""

from routing_fleets import build_fleet, list_members, make_pool

from forebay.gateway.policy.explain import explain
from forebay.gateway.policy.load import EJECT_AFTER, EJECT_S
from forebay.gateway.policy.route import Reason, Want


def test_a_replica_that_is_out_of_service_is_told_so_whatever_it_answered_since() -> None:
    fleet = build_fleet(make_pool("p", 2))
    load = list_members(fleet)[0].load
    for _ in range(EJECT_AFTER):
        load.fail(100.0)
    load.succeed()  # what was under way
    told = explain(fleet, Want(tokens=10), 100.0 + EJECT_S / 4, 0.3, 1)
    (ill,) = (each for each in told.candidates if each.rejected is not None)
    assert (ill.target, ill.rejected) == ("m@p#0", Reason.EJECTED)
    assert ill.why == "it failed too often in a row; back in 7.5 s"
