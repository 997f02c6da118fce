"""The short form of the campaign of kills in docs/reliability.md."""

from faults import kills, scenes


def test_a_program_that_is_stopped_by_every_signal_writes_the_same_bits(tmp_path):
    # With this seed, all three signals come in the first half of the run.
    campaign = kills.Campaign(tmp_path / "campaign", seed=57, attempts=1)
    record = campaign.chain(scenes.SHORT, 0, list(kills.SIGNALS))
    # How much CPU time a program takes varies, so that a late signal may find it finished, which ends the chain.
    assert not record["wrong"] and [sent for sent in record["signals"] if sent[2] != "too late"]
