"""Language models: log-probabilities of responses, the trainer, and files of pairs."""

import copy
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from jaxtyping import TypeCheckError
from torch import nn

from assay.supervised import (
    PreferenceBatch,
    PreferenceLoss,
    PreferenceTrainer,
    preference_batch,
    read_preference_pairs,
    sequence_log_probs,
)

VOCABULARY = 12


class TinyModel(nn.Module):
    """Embedding, running mean of the past, linear map: causal, and a few hundred parameters."""

    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = nn.Parameter(torch.randn(VOCABULARY, 8, generator=generator))
        self.head = nn.Parameter(0.3 * torch.randn(8, VOCABULARY, generator=generator))

    def forward(self, ids):
        steps = torch.arange(1, ids.shape[1] + 1, device=ids.device, dtype=self.embedding.dtype)
        past = self.embedding[ids].cumsum(1) / steps[:, None]
        return torch.tanh(past) @ self.head


def batches(n=6, seed=0):
    """Prompts after which the response should repeat the prompt's first token."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        records = []
        for _ in range(8):
            prompt = rng.integers(1, VOCABULARY, rng.integers(1, 4)).tolist()
            other = int(rng.integers(1, VOCABULARY - 1))
            other += other >= prompt[0]
            records.append((prompt, [prompt[0]] * int(rng.integers(1, 4)), [other] * int(rng.integers(1, 4))))
        made.append(preference_batch(records))
    return made


class TestSequenceLogProbs:
    def test_by_hand(self):
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(3, 5, 7, generator=generator, dtype=torch.float64)
        labels = torch.randint(7, (3, 5), generator=generator)
        mask = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
        log_probs, lengths = sequence_log_probs(logits, labels, mask)
        log_softmax = logits.log_softmax(-1)
        for row in range(3):
            expected = sum(log_softmax[row, t - 1, labels[row, t]] for t in range(1, 5) if mask[row, t])
            assert log_probs[row].item() == pytest.approx(float(expected))
        assert lengths.tolist() == [2, 4, 0]

    def test_unshifted_and_ignored_labels(self):
        logits, labels = torch.randn(2, 3, 4), torch.tensor([[1, 2, -100], [0, -100, 3]])
        log_probs, lengths = sequence_log_probs(logits, labels, shift=False)
        assert lengths.tolist() == [2, 2]
        expected = logits.log_softmax(-1)
        assert log_probs[0].item() == pytest.approx(float(expected[0, 0, 1] + expected[0, 1, 2]), rel=1e-5)

    def test_half_precision_has_the_digits_of_single(self):
        logits = (5 * torch.randn(4, 50, 100, generator=torch.Generator().manual_seed(0))).to(torch.bfloat16)
        labels = torch.randint(100, (4, 50), generator=torch.Generator().manual_seed(1))
        log_probs, _ = sequence_log_probs(logits, labels)
        assert log_probs.dtype == torch.float32
        torch.testing.assert_close(log_probs, sequence_log_probs(logits.float(), labels).log_probs)

    def test_gradient(self):
        logits = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
        labels = torch.tensor([[0, 1, 2, 0], [2, 1, 0, 1]])
        assert torch.autograd.gradcheck(lambda x: sequence_log_probs(x, labels).log_probs, logits)

    @pytest.mark.parametrize(
        ("logits", "labels", "mask", "error", "words"),
        [
            (torch.ones(2, 3), torch.ones(2, 3).long(), None, ValueError, "n_vocabulary"),
            (torch.ones(2, 3, 4), torch.ones(2, 3), None, TypeError, "int64"),
            (torch.ones(2, 3, 4), torch.ones(2, 4).long(), None, ValueError, r"labels must have shape \(2, 3\)"),
            (torch.ones(2, 3, 4), torch.ones(2, 3).long(), torch.ones(2), ValueError, "mask must have shape"),
            (torch.ones(2, 3, 4).long(), torch.ones(2, 3).long(), None, TypeError, "floating"),
        ],
    )
    def test_bad_input(self, logits, labels, mask, error, words):
        with pytest.raises(error, match=words):
            sequence_log_probs(logits, labels, mask)


class TestTrainer:
    @pytest.mark.parametrize("psi", ["logistic", "savage", "hinge"])
    def test_learns_and_keeps_the_reference(self, psi):
        policy = TinyModel()
        before = copy.deepcopy(policy.state_dict())
        trainer = PreferenceTrainer(policy, PreferenceLoss(psi, beta=0.5), torch.optim.Adam(policy.parameters(), 0.03))
        held_out = batches(4, seed=1)
        assert trainer.evaluate(held_out).accuracy == 0.5  # the policy is the reference: all margins are 0
        trainer.fit(batches(20), n_epochs=6)
        assert trainer.evaluate(held_out).accuracy > 0.75
        assert trainer.n_steps == len(trainer.history["loss"]) == 120
        for name, value in trainer.reference.state_dict().items():
            assert torch.equal(value, before[name])
        assert trainer.certificates()[0].holds

    def test_a_step_is_the_step_that_one_would_write(self):
        policy, by_hand = TinyModel(), TinyModel()
        reference = TinyModel(seed=1)
        batch = batches(1)[0]
        optimizer = torch.optim.SGD(policy.parameters(), 0.1)
        PreferenceTrainer(policy, PreferenceLoss(beta=0.3), optimizer, reference, clip=None).step(batch)
        totals = []
        for model in (by_hand, TinyModel(seed=1)):
            for ids, mask in ((batch.chosen_ids, batch.chosen_mask), (batch.rejected_ids, batch.rejected_mask)):
                chosen = model(ids).log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
                totals.append((chosen * mask[:, 1:]).sum(1))
        delta = 0.3 * ((totals[0] - totals[2]) - (totals[1] - totals[3]))
        (-nn.functional.logsigmoid(delta)).mean().backward()
        for mine, theirs in zip(policy.parameters(), by_hand.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs - 0.1 * theirs.grad)

    def test_simpo_needs_no_reference(self):
        policy = TinyModel()
        loss = PreferenceLoss(beta=2.0, margin=0.5, length_power=1, reference_free=True)
        trainer = PreferenceTrainer(policy, loss, torch.optim.Adam(policy.parameters(), 0.03))
        assert trainer.reference is None
        assert trainer.certificates() == ()
        assert trainer.fit(batches(), n_epochs=10).history["loss"][-1] < trainer.history["loss"][0]

    def test_continuation_follows_the_training(self):
        policy, phases = TinyModel(), []
        trainer = PreferenceTrainer(policy, PreferenceLoss("savage"), torch.optim.SGD(policy.parameters(), 0.01))
        trainer.fit(batches(5), n_epochs=4, callback=lambda t: phases.append(t.loss.phase))
        np.testing.assert_allclose(phases[:5], [0, 0.25, 0.5, 0.75, 1])
        assert phases[5:] == [1.0] * 15

    def test_computed_reference_log_probs(self):
        batch = batches(1)[0]
        policy, reference = TinyModel(), TinyModel(seed=3)
        trainer = PreferenceTrainer(
            policy, PreferenceLoss(), torch.optim.SGD(policy.parameters(), 0.1), copy.deepcopy(reference)
        )
        expected = trainer.compute_loss(batch).loss
        logps = [
            sequence_log_probs(reference(ids), ids, mask).log_probs.detach()
            for ids, mask in ((batch.chosen_ids, batch.chosen_mask), (batch.rejected_ids, batch.rejected_mask))
        ]
        from dataclasses import replace

        trainer.reference.head.data.zero_()
        batch = replace(batch, reference_chosen_logps=logps[0], reference_rejected_logps=logps[1])
        torch.testing.assert_close(trainer.compute_loss(batch).loss, expected)

    def test_state(self):
        def fresh():
            policy = TinyModel()
            return PreferenceTrainer(policy, PreferenceLoss("savage"), torch.optim.Adam(policy.parameters(), 0.03))

        one, other = fresh(), fresh()
        data = batches(3)
        one.fit(data)
        other.load_state_dict(copy.deepcopy(one.state_dict()))
        for trainer in (one, other):
            trainer.fit(data)
        for mine, theirs in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
            assert torch.equal(mine, theirs)
        assert one.history == other.history

    def test_a_changed_reference_is_noticed(self):
        policy = TinyModel()
        trainer = PreferenceTrainer(policy, PreferenceLoss(), torch.optim.SGD(policy.parameters(), 0.1))
        trainer.reference.head.data[0, 0] += 1e-3
        assert not trainer.certificates()[0].holds
        swapped = PreferenceTrainer(policy, PreferenceLoss(), torch.optim.SGD(policy.parameters(), 0.1))
        swapped.reference.head.data = swapped.reference.head.data.flip(0)
        assert not swapped.certificates()[0].holds

    def test_a_changed_reference_is_noticed_after_it_was_saved(self):
        policy = TinyModel()
        trainer = PreferenceTrainer(policy, PreferenceLoss(), torch.optim.SGD(policy.parameters(), 0.1))
        trainer.reference.head.data[0, 0] += 1e-3
        state = trainer.state_dict()
        again = TinyModel(seed=5)
        resumed = PreferenceTrainer(again, PreferenceLoss(), torch.optim.SGD(again.parameters(), 0.1))
        resumed.load_state_dict(state)
        assert not resumed.certificates()[0].holds
        free = PreferenceLoss(reference_free=True)
        with pytest.raises(ValueError, match="state must be"):
            PreferenceTrainer(again, free, torch.optim.SGD(again.parameters(), 0.1)).load_state_dict(state)

    def test_buffers_of_the_reference_count(self):
        policy = TinyModel()
        policy.register_buffer("scale", torch.ones(3))
        trainer = PreferenceTrainer(policy, PreferenceLoss(), torch.optim.SGD(policy.parameters(), 0.1))
        assert trainer.certificates()[0].holds
        trainer.reference.scale[1] = 2.0
        assert not trainer.certificates()[0].holds

    def test_a_forward_that_was_replaced(self):
        policy = TinyModel()
        policy.forward = partial(TinyModel.forward, policy)  # without code that could be looked at
        trainer = PreferenceTrainer(
            policy, PreferenceLoss(reference_free=True), torch.optim.SGD(policy.parameters(), 0.1)
        )
        assert torch.isfinite(trainer.step(batches(1)[0]).loss)

    def test_identical_responses_warn(self):
        policy = TinyModel()
        trainer = PreferenceTrainer(policy, PreferenceLoss(), torch.optim.SGD(policy.parameters(), 0.1))
        with pytest.warns(UserWarning, match="1 of 2 pairs have one response"):
            trainer.step(preference_batch([([1], [2], [2]), ([1], [2, 3], [3])]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer.step(preference_batch([([1], [2], [2, 2])]))

    @pytest.mark.parametrize("kind", ["gpt2", "llama"])
    def test_models_of_transformers(self, kind):
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        if kind == "gpt2":
            config = transformers.GPT2Config(
                vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=1, n_head=2,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            )  # fmt: skip
            policy = transformers.GPT2LMHeadModel(config)
        else:
            config = transformers.LlamaConfig(
                vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                num_attention_heads=2, max_position_embeddings=16,
            )  # fmt: skip
            policy = transformers.LlamaForCausalLM(config)
        trainer = PreferenceTrainer(policy, PreferenceLoss(beta=0.5), torch.optim.AdamW(policy.parameters(), 0.01))
        data = batches(4)
        # padding is neither attended to nor counted
        alone = preference_batch([([3, 4], [5], [6, 7, 8])])
        padded = preference_batch([([3, 4], [5], [6, 7, 8]), ([1, 2, 3], [4] * 6, [5] * 6)])
        values = [
            trainer.log_probs(policy.eval(), b.chosen_ids, b.chosen_mask, b.chosen_attention).log_probs[0]
            for b in (alone, padded)
        ]
        torch.testing.assert_close(*values, rtol=1e-4, atol=1e-5)
        trainer.fit(data, n_epochs=6)
        assert trainer.evaluate(data).accuracy > 0.75
        assert trainer.certificates()[0].holds

    def test_bad_input(self):
        policy, loss = TinyModel(), PreferenceLoss()
        optimizer = torch.optim.SGD(policy.parameters(), 0.1)
        with pytest.raises((TypeError, TypeCheckError), match="loss"):
            PreferenceTrainer(policy, "logistic", optimizer)
        with pytest.raises(ValueError, match="parameters of the policy"):
            PreferenceTrainer(TinyModel(), loss, optimizer)
        with pytest.raises(ValueError, match="share no trained parameter"):
            PreferenceTrainer(policy, loss, optimizer, policy)
        trainer = PreferenceTrainer(policy, loss, optimizer)
        with pytest.raises(TypeError, match="PreferenceBatch"):
            trainer.step({"chosen": 1})
        with pytest.raises(ValueError, match="at least one batch"):
            trainer.fit([])
        with pytest.raises(ValueError, match="empty one at 0"):
            preference_batch([([1], [], [2])])
        ids = torch.ones(2, 3, dtype=torch.int64)
        with pytest.raises(ValueError, match="rows"):
            PreferenceBatch(ids, ids[:1], ids, ids[:1])

        class NoLogits(TinyModel):
            def forward(self, ids):
                return (super().forward(ids),)

        bad = NoLogits()
        with pytest.raises(TypeError, match="logits"):
            PreferenceTrainer(bad, loss, torch.optim.SGD(bad.parameters(), 0.1)).step(batches(1)[0])


class TestFiles:
    def test_jsonl(self, tmp_path):
        path = tmp_path / "pairs.jsonl"
        path.write_text(
            '{"prompt": "a", "chosen_logps": -5, "rejected_logps": -7, "tie": false}\n'
            '{"prompt": "b", "chosen_logps": -1.25, "rejected_logps": -2, "tie": true}\n'
        )
        table = read_preference_pairs(path)
        assert table["chosen_logps"].tolist() == [-5.0, -1.25]
        assert table["tie"].tolist() == [False, True]
        assert table["prompt"].tolist() == ["a", "b"]
        logps = [torch.tensor(table[name].to_numpy()) for name in ("chosen_logps", "rejected_logps")]
        assert torch.isfinite(PreferenceLoss(reference_free=True)(*logps).loss)

    def test_csv(self, tmp_path):
        path = tmp_path / "pairs.csv"
        pd.DataFrame({"winner": [0, 3], "loser": [1, 2], "margin": [0.5, 1]}).to_csv(path, index=False)
        table = read_preference_pairs(path)
        assert table[["winner", "loser"]].to_numpy().tolist() == [[0, 1], [3, 2]]
        assert table["margin"].dtype == np.float64
        path.write_text("0,1\n3,2\n")
        assert read_preference_pairs(path)[["winner", "loser"]].to_numpy().tolist() == [[0, 1], [3, 2]]

    @pytest.mark.parametrize(
        ("name", "text", "words"),
        [
            ("a.csv", "winner,loser\n0,1\n2,2\n", "another item than the loser, got .*2.* in pair 1"),
            ("a.csv", "winner,loser\n0,-1\n", "loser must have indices from 0 on"),
            ("a.csv", "winner,loser\n0,x\n", "loser must have finite numbers, got 'x' in pair 0"),
            ("a.csv", "best,worst\n0,1\n", "columns winner and loser"),
            ("a.csv", "winner,loser\n", "at least one pair"),
            ("a.csv", "", "got 0 bytes"),
            ("a.jsonl", '{"chosen_logps": 1}\n', "rejected_logps"),
            ("a.jsonl", "not json\n", "JSON lines"),
            ("a.jsonl", '{"chosen_logps": null, "rejected_logps": -1}\n', "finite numbers"),
            ("a.jsonl", '{"chosen_logps": -1, "rejected_logps": -1, "tie": "perhaps"}\n', "true or false"),
            ("a.pkl", "x", "format must be given"),
        ],
    )
    def test_bad_files(self, tmp_path, name, text, words):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(ValueError, match=words):
            read_preference_pairs(path)

    def test_missing_file(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            read_preference_pairs(tmp_path / "none.csv")
