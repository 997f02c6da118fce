"""The short form of the campaign of kills in docs/reliability.md."""

from faults import kills


def test_a_program_that_is_stopped_by_every_signal_writes_the_same_bits(tmp_path):
    # With this seed, all three signals come in the first half of the run.
    campaign = kills.Campaign(tmp_path / "campaign", seed=57, attempts=1)
    record = campaign.chain(kills.SHORT, 0, list(kills.SIGNALS))
    # How much CPU time a program takes varies, so that a late signal may find it finished, which ends the chain.
    assert not record["wrong"] and [sent for sent in record["signals"] if sent[2] != "too late"]


def test_a_campaign_draws_every_signal_in_its_proportion():
    chains = kills.planned(kills.SCENES, seed=0)
    drawn = [name for _, _, signals in chains for name in signals]
    assert drawn.count("SIGKILL") >= 200 and drawn.count("SIGTERM") >= 50 and drawn.count("SIGHUP") >= 20
    assert {scene.name for scene, _, _ in chains[:20]} == {scene.name for scene in kills.SCENES}
