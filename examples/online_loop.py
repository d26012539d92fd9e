"""The whole method in one file: a model talks, a user reacts, and the reaction trains it before the next question.

    ask ──▶ reply, with the log-prob of each sampled token        sample()
      ▲       └─▶ the user reads it and says something            react()
      │             ├─ was it good?         ─▶ reward +1 / -1      the evaluative signal
      │             └─ how should it differ? ─▶ hint               the directive signal
      │     teacher = the frozen model that reads the hint: log-probs of the *same* tokens
      └── one AdamW step on the fusion of both                    learn()

    python examples/online_loop.py                                  # 8 minutes of processor time
    python examples/online_loop.py --rounds 3 --prompts 4           # a look
    python examples/online_loop.py --w-dir 0                        # the reward alone
    python examples/online_loop.py --w-eval 0                       # the hint alone
    python examples/online_loop.py --fusion topk --estimator full   # the teacher's whole distribution

The user here wants short answers. It is scripted, but nobody tells the learner what it wants: reward and hint are read
off its sentences, as they would be off yours. There is no server, no store and no gate; `stereorl up` has them.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from stereorl.choices import ESTIMATORS, FUSIONS, SCHEDULES
from stereorl.config import ModelConfig, ObjectiveConfig, WeightsConfig
from stereorl.core import Progress, Support, cosine, evaluative_advantage, make_streams, masked_mean, norm
from stereorl.data import Message, NextState, Sampling, Turn
from stereorl.learn.objective import make_fusion, make_schedule
from stereorl.policy.adapters import attach, reference
from stereorl.policy.load import load
from stereorl.policy.render import Renderer, with_hint
from stereorl.policy.score import Positions
from stereorl.signals.hints import extract_hints
from stereorl.signals.judge import RulesJudge, decide
from stereorl.study.personas import Persona, persona_named
from stereorl.study.prompts import questions

LABEL, SIGNALS = "[user's hint / instruction]", ("eval", "dir")


@dataclass
class Heard:
    """A reply, and what the user's next sentence says about it. None: the sentence says nothing of that kind."""

    turn: Turn
    said: str
    kept: bool
    reward: int | None
    hint: str | None


@dataclass
class Agent:
    """The base with a LoRA adapter (`reference(model)` switches it off), and what trains it."""

    model: Any
    renderer: Renderer
    fusion: Any  # core.Fusion: makes one objective of the streams
    schedule: Any  # core.Schedule: the two signals' weights, by progress
    optimizer: torch.optim.Optimizer
    parameters: list[Tensor]
    args: argparse.Namespace
    baseline: float = 0.0  # running mean of the reward


@torch.no_grad()
def sample(agent: Agent, asked: Sequence[str]) -> list[Turn]:
    """A reply to each question: its ids and log pi(id) at the temperature they were drawn at, nothing cut away."""
    prompts = [agent.renderer.encode([Message("user", question)]) for question in asked]
    longest, end = max(map(len, prompts)), min(agent.renderer.eos_ids)
    padded = torch.tensor([[end] * (longest - len(p)) + p for p in prompts])  # on the left: all reply at once
    seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    out = agent.model.generate(
        input_ids=padded, attention_mask=seen, max_new_tokens=agent.args.tokens, do_sample=True, top_k=0, top_p=1.0,
        temperature=agent.args.temperature, eos_token_id=sorted(agent.renderer.eos_ids), pad_token_id=end,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    ids_BT = out.sequences[:, longest:]
    logp_BTV = (torch.stack(out.logits, 1).float() / agent.args.temperature).log_softmax(-1)
    logp_BT = logp_BTV.gather(2, ids_BT[:, :, None]).squeeze(2).clamp(max=0.0)
    return [turn_of(agent, *row) for row in zip(asked, prompts, ids_BT.tolist(), logp_BT, strict=True)]


def turn_of(agent: Agent, question: str, prompt: list[int], ids: list[int], logp_T: Tensor) -> Turn:
    """Up to and with the first end token: the model decided to stop, so that decision is trained as well."""
    ends = [at for at, token in enumerate(ids) if token in agent.renderer.eos_ids]
    n = ends[0] + 1 if ends else len(ids)
    return Turn(
        turn_id=question, session_id=question, index=0, kind="main", model="example", created_at=0.0,
        messages=(Message("user", question),), reply=Message("assistant", agent.renderer.decode(ids[:n])),
        prompt_ids=np.array(prompt, np.int32), response_ids=np.array(ids[:n], np.int32),
        log_probs=logp_T[:n].numpy(), versions=np.zeros(n, np.int32),
        sampling=Sampling(temperature=agent.args.temperature), finish_reason="stop" if ends else "length",
    )  # fmt: skip


def react(turn: Turn, persona: Persona, choice: random.Random) -> Heard:
    """The user thanks or complains; a judge and a reader of hints see nothing but that sentence."""
    kept = persona.check(turn.reply.content, turn.finish_reason)
    said = choice.choice(persona.thanks if kept else persona.complaints)
    state = NextState(turn.turn_id, "reply", (Message("user", said),), 0.0)
    reward = decide(RulesJudge().votes(turn, state)).reward
    hints = [h.text for h in extract_hints(state, reply=turn.reply, request=turn.messages) if h.accepted]
    return Heard(turn, said, kept, reward, hints[0] if hints else None)


def learn(agent: Agent, heard: Sequence[Heard], progress: Progress) -> dict[str, float | None]:
    """One step on what was heard: three passes over the sampled ids, the fusion of both signals, its gradient.

    In a stream, a row of NaN means that the reply lacks the signal; a zero would be one.
    """
    nan, temperature = float("nan"), agent.args.temperature
    reward_B = torch.tensor([nan if h.reward is None else float(h.reward) for h in heard])
    adv_B, agent.baseline = evaluative_advantage(reward_B, ~reward_B.isnan(), running_mean=agent.baseline)
    taught_B1 = torch.tensor([[h.hint is not None] for h in heard])
    replies, plain = [h.turn.response_ids for h in heard], [h.turn.prompt_ids for h in heard]
    hinted = [agent.renderer.encode(with_hint(h.turn.messages, h.hint or "", LABEL)) for h in heard]
    with torch.no_grad(), reference(agent.model):
        base = Positions.of(agent.model, plain, replies, temperature=temperature)
        teacher = Positions.of(agent.model, hinted, replies, temperature=temperature)
    policy = Positions.of(agent.model, plain, replies, temperature=temperature)
    streams = make_streams(
        policy.log_probs(),  # the only one with a gradient; before the step it is also log pi_old
        policy.mask_BR,
        reward_B=reward_B,
        adv_B=adv_B,
        logp_behaviour_BT=policy.by_row(torch.from_numpy(np.concatenate([h.turn.log_probs for h in heard]))),
        logp_ref_BT=base.log_probs(),
        logp_teacher_BT=teacher.log_probs().masked_fill(~taught_B1, nan),
        support=support_of(agent.fusion.needs.top_k, policy, teacher, taught_B1),
        vocabulary=Pair(policy, teacher, policy.mask_BR & taught_B1),
    )
    objective = agent.fusion(streams, agent.schedule.weights(progress))
    slopes = [torch.autograd.grad(objective.terms[n], agent.parameters, retain_graph=True) for n in SIGNALS]
    eval_P, dir_P = map(parameters_to_vector, slopes)  # apart, to see whether the signals pull the same way
    agent.optimizer.zero_grad()
    objective.loss.backward()
    torch.nn.utils.clip_grad_norm_(agent.parameters, 1.0)
    agent.optimizer.step()
    return {
        "gap": masked_mean(objective.tokens["raw_gap"], streams.teacher_mask_BT),
        "kl": masked_mean(objective.tokens["kl"], streams.mask_BT),
        **{"|eval|": norm(eval_P), "|dir|": norm(dir_P), "cos": cosine(eval_P, dir_P)},
    }


def support_of(k: int, policy: Positions, teacher: Positions, taught_B1: Tensor) -> Support | None:
    """Both sides' log-probs of the policy's K likeliest entries, for estimators that read more than the sampled one."""
    if not k:
        return None
    ids_NK, _ = policy.top(k)
    new_BTK = policy.by_row(policy.log_probs_at(ids_NK))
    teacher_BTK = policy.by_row(teacher.log_probs_at(ids_NK))
    mask_BTK = (policy.mask_BR & taught_B1)[:, :, None].expand(new_BTK.shape)
    return Support(
        logp_new_BTK=new_BTK, logp_old_BTK=new_BTK.detach(), logp_teacher_BTK=teacher_BTK, mask_BTK=mask_BTK
    )


@dataclass
class Pair:
    """Both sides' whole distributions, a few tokens at a time (`core.Vocabulary`)."""

    policy: Positions
    teacher: Positions
    mask: Tensor

    def map(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return self.policy.by_row(self.policy.map(function, self.teacher)) * self.mask


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(argv)
    torch.manual_seed(args.seed)
    choice = random.Random(args.seed)
    agent = agent_of(args)
    start_P = parameters_to_vector(agent.parameters).detach()
    persona, progress = persona_named(args.persona), Progress(0)
    unasked = questions("heldout")[: args.heldout]
    before = [react(turn, persona, choice) for turn in sample(agent, unasked)]
    rows: list[dict[str, float | None]] = []
    for number in range(args.rounds):
        asked = choice.sample(questions("train"), args.prompts)
        heard = [react(turn, persona, choice) for turn in sample(agent, asked)]
        learned = learn(agent, heard, progress)
        rewards = [h.reward for h in heard if h.reward is not None]
        reward = sum(rewards) / len(rewards) if rewards else None
        kept, hints = np.mean([(h.kept, h.hint is not None) for h in heard], axis=0).tolist()
        progress = Progress(number + 1, mean_reward=reward, directive_share=hints)
        rows.append({"round": number + 1, "kept": kept, "reward": reward, "hints": hints, **learned})
        show(rows)
    after = [react(turn, persona, choice) for turn in sample(agent, unasked)]
    was, now = (np.mean([h.kept for h in heard]) for heard in (before, after))
    print(f"\nHeld-out questions that got {persona.wants}: {was:.2f} before, {now:.2f} after")
    for old, new in list(zip(before, after, strict=True))[:3]:
        print(f"\n{old.turn.turn_id}\n  before: {old.turn.reply.content}\n  after:  {new.turn.reply.content}")
    moved = norm(parameters_to_vector(agent.parameters).detach() - start_P)
    return {"rows": rows, "before": before, "after": after, "moved": moved}


def agent_of(args: argparse.Namespace) -> Agent:
    loaded = load(ModelConfig(name=args.model))
    renderer = Renderer(loaded.tokenizer, loaded.context_length, loaded.eos_ids)
    model = attach(loaded, kind="lora", r=16, alpha=32, seed=args.seed)
    parameters = [p for p in model.parameters() if p.requires_grad]
    fusion = make_fusion(ObjectiveConfig(fusion=args.fusion, estimator=args.estimator))
    schedule = make_schedule(WeightsConfig(schedule=args.schedule, w_eval=args.w_eval, w_dir=args.w_dir))
    optimizer = torch.optim.AdamW(parameters, lr=args.lr, weight_decay=0.0)
    return Agent(model, renderer, fusion, schedule, optimizer, parameters, args)


def show(rows: Sequence[dict[str, float | None]]) -> None:
    if len(rows) == 1:
        print("  ".join(f"{name:>7}" for name in rows[0]))
    print("  ".join("      -" if v is None else f"{v:7.3g}" for v in rows[-1].values()), flush=True)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    add = parser.add_argument
    add("--rounds", type=int, default=12, help="updates; one batch of replies each (default 12)")
    add("--prompts", type=int, default=8, help="questions a round (default 8)")
    add("--heldout", type=int, default=12, help="questions before and after, never trained (default 12)")
    add("--fusion", default="advantage_sum", help=f"how two signals become one: {', '.join(FUSIONS)}")
    add("--estimator", default="auto", help=f"how the teacher is read: auto, {', '.join(ESTIMATORS)}")
    add("--schedule", default="constant", help=f"how the weights move: {', '.join(SCHEDULES)}")
    add("--w-eval", type=float, default=0.3, help="weight of the reward (default 0.3)")
    add("--w-dir", type=float, default=1.0, help="weight of the hint (default 1)")
    add("--lr", type=float, default=5e-4, help="learning rate; at 0 nothing moves and the KL stays 0")
    add("--tokens", type=int, default=48, help="longest reply (default 48)")
    add("--temperature", type=float, default=0.6, help="of sampling *and* of every log-prob (default 0.6)")
    add("--persona", default="brief", help="what the user wants: brief, plain, paragraph")
    add("--model", default="embedded", help="'embedded', a folder, or a hub name")
    add("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
