// The papers' protocols, step by step, and what each step means. The messages are those of balancing/protocols/.

export const STEPS = {
  mslb: [
    ["ComputePartitionsToMove", "The manager asks the sender which groups to move."],
    ["PartitionsToMove", "The sender has answered."],
    ["DeactivatePartitions", "An epoch opens the transfer: the sender finishes one more batch."],
    ["Deactivated", "All rows that came before are joined; the groups are frozen."],
    ["SendPartitions", "The sender may send."],
    ["ReceivePartitions", "The package with the groups' state is in the transfer store."],
    ["Received", "The receiver has taken the state in, in a committed batch."],
    ["ReactivatePartitions", "An epoch makes the receiver the owner: no way back from here."],
  ],
  ptlb: [
    ["ComputePartitionsToMove", "The manager asks the sender which groups to move."],
    ["PartitionsToMove", "The sender has answered."],
    ["DuplicatePartitions", "Rows go to both workers from now on."],
    ["AllOldPurged", "No old row is live at the sender any more."],
    ["DeletePartitions", "An epoch makes the receiver the owner: no way back from here."],
  ],
};

/** "ComputePartitionsToMove" in words. */
export const words = (message) => message.replace(/([a-z])([A-Z])/g, (_, a, b) => `${a} ${b.toLowerCase()}`);

export const BACK = new Set(["returning", "restoring", "clearing"]);

/** For each step of a migration: done, current or still to come, and when it was reached. Pure. */
export function reached(migration) {
  const story = migration.story ?? [];
  const wave = story.reduce((most, line) => Math.max(most, line.wave ?? 0), 0);
  const rows = STEPS[migration.strategy] ?? Array.from({ length: migration.steps ?? 0 }, (_, at) => [`Step ${at + 1}`, ""]);
  const began = story[0]?.at_ms ?? migration.created_ms;
  const ended = Boolean(migration.outcome);
  const step = migration.step ?? 0;
  const back = BACK.has(migration.state);
  return rows.map(([message, about], at) => {
    const number = at + 1;
    const line = story.findLast((each) => each.step === number && (number <= 2 || each.wave === wave)) ?? null;
    const passed = ended || back || number < step;
    const state = line ? (passed ? "done" : "current") : ended || back ? "left-out" : "to-come";
    return { number, message, about, state, at_ms: line?.at_ms ?? null, after_s: line ? (line.at_ms - began) / 1000 : null };
  });
}

export const waveOf = (migration) => (migration.story ?? []).reduce((most, line) => Math.max(most, line.wave ?? 0), 0);
