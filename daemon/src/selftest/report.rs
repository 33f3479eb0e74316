//! The result: a line for each path and kind, and a sum.

use serde_json::{Value, json};

use super::{compare::Numbers, syscalls::Agreement};

/// What came of one load on one path, or with one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    path: String,
    work: String,
    abi: String,
    /// Whether what was counted is what happened.
    pub state: State,
    expected: Numbers,
    seen: Numbers,
    reason: String,
    agreement: Agreement,
}

/// Whether what was counted is what happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is, to the last unit.
    Ok,
    /// It is not.
    Wrong,
    /// It cannot happen, or cannot be seen, on this kernel or machine.
    Impossible,
}

impl State {
    /// In the report.
    pub const fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Wrong => "wrong",
            State::Impossible => "not possible here",
        }
    }
}

impl Row {
    /// One of which nothing is known.
    pub fn new(path: &str, work: &str, abi: &str) -> Row {
        Row {
            path: path.into(),
            work: work.into(),
            abi: abi.into(),
            state: State::Ok,
            expected: Numbers::default(),
            seen: Numbers::default(),
            reason: String::new(),
            agreement: Agreement::Unknown,
        }
    }

    /// One that cannot be tested.
    pub fn impossible(path: &str, work: &str, abi: &str, why: &str) -> Row {
        Row::new(path, work, abi).cannot(why)
    }

    /// It cannot be tested.
    pub fn cannot(self, why: &str) -> Row {
        Row { state: State::Impossible, reason: why.into(), ..self }
    }

    /// The load failed.
    pub fn fails(self, why: &str) -> Row {
        Row { state: State::Wrong, reason: format!("the load failed: {why}"), ..self }
    }

    /// With what should have been counted, what was, and where it may have passed unseen.
    pub fn compared(self, expected: Numbers, seen: Numbers, missing: Option<String>) -> Row {
        let (state, reason) = match missing {
            _ if expected == seen => (State::Ok, String::new()),
            Some(missing) if seen.is_zero() => (State::Impossible, missing),
            missing => (State::Wrong, missing.unwrap_or_default()),
        };
        Row { state, reason, expected, seen, ..self }
    }

    /// With what the kernel itself says about the number of system calls.
    pub fn agree(&mut self, agreement: Agreement) {
        if let (Agreement::Disagrees(text), State::Ok) = (&agreement, self.state) {
            self.state = State::Wrong;
            self.reason = text.clone();
        }
        self.agreement = agreement;
    }

    fn verdict(&self) -> String {
        let Row { expected, seen, reason, .. } = self;
        match (self.state, &self.agreement) {
            (State::Ok, Agreement::Agrees(text)) => format!("ok, {text}"),
            (State::Ok, _) => "ok".into(),
            (State::Impossible, _) => format!("not possible here: {reason}"),
            (State::Wrong, _) if expected == seen => format!("wrong ({reason})"),
            (State::Wrong, _) => {
                let more = if reason.is_empty() { String::new() } else { format!("; {reason}") };
                format!("wrong (expected {}, seen {}{more})", expected.text(), seen.text())
            }
        }
    }
}

fn count(rows: &[Row], state: State) -> usize {
    rows.iter().filter(|row| row.state == state).count()
}

/// 0 if nothing is wrong, 1 if something is, 2 if nothing was counted at all.
pub fn exit_code(rows: &[Row]) -> u8 {
    match (count(rows, State::Wrong), count(rows, State::Ok)) {
        (0, 0) => 2,
        (0, _) => 0,
        _ => 1,
    }
}

/// For people and for grep.
pub fn text(rows: &[Row]) -> String {
    let width = |of: fn(&Row) -> &String| rows.iter().map(|row| of(row).len()).max().unwrap_or(0);
    let (path, work) = (width(|row| &row.path), width(|row| &row.work));
    let mut lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let verdict = row.verdict().replace('\n', " ");
            format!("{:<path$}  {}  {:<work$}  {verdict}", row.path, row.abi, row.work)
        })
        .collect();
    if let Some(why) = rows.iter().find_map(|row| row.agreement.absent()) {
        lines.push(format!("system calls are not counted a second time: {why}"));
    }
    let [ok, wrong, impossible] =
        [State::Ok, State::Wrong, State::Impossible].map(|state| count(rows, state));
    lines.push(format!("{ok} ok, {wrong} wrong, {impossible} not possible here\n"));
    lines.join("\n")
}

/// For programs.
pub fn json(rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| {
            json!({
                "path": row.path,
                "work": row.work,
                "abi": row.abi,
                "state": row.state.name(),
                "expected": row.expected.json(),
                "seen": row.seen.json(),
                "reason": row.reason,
                "sys_enter": row.agreement.name(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |path| Row::new(path, "load", "64");
        let numbers = |calls| Numbers::of_calls(calls, 9);
        let mut agreed = row("readv").compared(numbers(3), numbers(3), Some("a site".into()));
        agreed.agree(Agreement::Agrees("sys_enter_readv 3 agrees".into()));
        let mut disagreed = row("writev").compared(numbers(3), numbers(3), None);
        disagreed.agree(Agreement::Disagrees("sys_enter_writev 2, not 3".into()));
        vec![
            agreed,
            disagreed,
            row("aio").compared(numbers(3), numbers(2), None),
            row("vmsplice").compared(
                numbers(3),
                Numbers::of_calls(0, 0),
                Some("f+0x1 is not seen: x".into()),
            ),
            row("keyctl").fails("no memory"),
            Row::impossible("block", "-", "64", "no device"),
        ]
    }

    #[test]
    fn each_row_is_a_line() {
        assert_eq!(
            text(&rows()),
            "readv     64  load  ok, sys_enter_readv 3 agrees\n\
             writev    64  load  wrong (sys_enter_writev 2, not 3)\n\
             aio       64  load  wrong (expected calls 3, bytes 9, seen calls 2, bytes 9)\n\
             vmsplice  64  load  not possible here: f+0x1 is not seen: x\n\
             keyctl    64  load  wrong (the load failed: no memory)\n\
             block     64  -     not possible here: no device\n\
             1 ok, 3 wrong, 2 not possible here\n"
        );
    }

    #[test]
    fn programs_get_the_numbers() {
        let rows = json(&rows());
        assert_eq!(rows[2]["seen"]["calls"], 2);
        assert_eq!(rows[3]["state"], "not possible here");
        assert_eq!(rows[0]["sys_enter"], "agree");
        assert_eq!(rows.as_array().map(Vec::len), Some(6));
    }

    #[test]
    fn the_exit_code_tells_right_wrong_and_nothing() {
        let rows = rows();
        assert_eq!(exit_code(&rows), 1);
        assert_eq!(exit_code(&rows[..1]), 0);
        assert_eq!(exit_code(&[rows[0].clone(), rows[5].clone()]), 0);
        assert_eq!(exit_code(&rows[5..]), 2);
        assert_eq!(exit_code(&[]), 2);
    }
}
