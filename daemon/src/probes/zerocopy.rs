//! Attaching what watches TCP without copies.

use super::{Probes, explain, raw_trace_point, refusal::NO_TRACEPOINT};
use crate::{
    plan::zerocopy::{Function, Role, Zerocopy},
    snapshot::{Probe, State},
};

/// The tracepoints, and the programs that run there; the end first, so that no wait begins without one.
const WAITS: [(&str, &str); 2] = [("contention_end", "wait_end"), ("contention_begin", "wait_begin")];

/// The programs of a role: at the entry, and at the exit. Where there are two, the second makes up for the first where
/// that was kept from running.
const fn programs(role: Role) -> (&'static [&'static str], &'static [&'static str]) {
    match role {
        Role::Receive => (&["receive_entry", "receive_entry_again"], &["receive_exit", "receive_exit_again"]),
        Role::Insert => (&["insert_entry"], &["insert_exit"]),
        Role::Zap => (&["zap_entry"], &["zap_exit"]),
        Role::Send => (&[], &["send_exit", "send_exit_again"]),
        Role::Sent => (&["sent_entry"], &[]),
    }
}

/// The rows of what is to be attached.
pub(super) fn rows(zerocopy: &Zerocopy) -> Vec<Probe> {
    let row = |target: &str, mechanism: &str, reason: &str| Probe {
        target: target.into(),
        site: target.into(),
        mechanism: if reason.is_empty() { mechanism } else { "none" }.into(),
        state: if reason.is_empty() { State::Pending } else { State::Unavailable },
        reason: reason.into(),
        kprobes: Vec::new(),
    };
    let functions = zerocopy.functions.iter().map(|function| {
        let mechanism = if programs(function.role).0.is_empty() { "fexit" } else { "fentry" };
        row(&function.symbol, mechanism, &function.reason)
    });
    let waits = WAITS.iter().rev().map(|(tracepoint, _)| row(tracepoint, "tracepoint", ""));
    functions.chain(waits).collect()
}

impl Probes {
    /// Attaches all of it, once; what the kernel refuses is so marked.
    pub fn attach_zerocopy(&mut self) {
        let Some(zerocopy) = self.zerocopy.take() else { return };
        for function in zerocopy.functions.iter().filter(|function| function.reason.is_empty()) {
            let attached = self.watch_function(function);
            self.told(&function.symbol, attached);
        }
        for (tracepoint, program) in WAITS {
            let attached = self.watch_tracepoint(program, tracepoint);
            self.told(tracepoint, attached);
        }
    }

    fn told(&mut self, name: &str, attached: Result<(), String>) {
        match attached {
            Ok(()) => self.states.set_other(name, State::Attached, String::new()),
            // `lock:contention_begin` and its end came with 5.19.
            Err(reason) if reason == NO_TRACEPOINT => {
                self.states.set_other(name, State::Unavailable, reason);
            }
            Err(reason) => {
                log::debug!("{name}: {reason}");
                self.states.set_other(name, State::Failed, reason);
            }
        }
    }

    /// The exit first, so that no call is entered without one.
    fn watch_function(&mut self, function: &Function) -> Result<(), String> {
        let (entries, exits) = programs(function.role);
        let mut links = Vec::new();
        for name in exits {
            links.push(self.exit(name, &function.symbol)?);
        }
        for name in entries {
            links.push(self.entry(name, &function.symbol)?);
        }
        self.others.extend(links);
        Ok(())
    }

    fn watch_tracepoint(&mut self, name: &'static str, tracepoint: &str) -> Result<(), String> {
        let program = raw_trace_point(&mut self.ebpf, name).map_err(|error| error.to_string())?;
        program.load().map_err(|error| explain(&error))?;
        self.programs.loaded(name, program.info());
        let link = program.attach(tracepoint).map_err(|error| explain(&error))?;
        self.tracepoints.push(program.take_link(link).map_err(|error| explain(&error))?);
        Ok(())
    }
}
