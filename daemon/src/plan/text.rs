//! The kernel's text: who calls a target, and who can be traced.
//!
//! The text is live. A kprobe has its first byte replaced by a breakpoint, or five bytes by a jump to a copy, and
//! both may be there while we read, from another tracer or from a second iotrace. Neither hides a call.
//!
//! Whatever the bytes are, a search takes time in proportion to their number; its memory is 64 bytes for each byte
//! of text at most, which a text of nothing but calls would need.

use std::ops::Range;

use super::arch_x86_64::{self as arch, Flow, Function, Instruction};
use super::kallsyms::{Symbol, Symbols};

/// A longer function is not looked at: no kernel has one.
const FUNCTION_LIMIT: usize = 1 << 20;

/// Functions start at multiples of 64 at most, so there is no more filler in one piece than this.
const FILLER_LIMIT: usize = 64;

/// A piece of text as it stands in memory.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// Where it starts.
    pub address: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The module it belongs to; `None` for the kernel proper.
    pub module: Option<&'a str>,
}

impl<'a> Text<'a> {
    /// The bytes from an address to an end, or to the end of the text; at least one.
    fn from(&self, address: u64, end: u64) -> Option<&'a [u8]> {
        let start = usize::try_from(address.checked_sub(self.address)?).ok()?;
        let length = usize::try_from(end.checked_sub(address)?).unwrap_or(usize::MAX);
        let rest = self.bytes.get(start..)?;
        Some(&rest[..length.min(rest.len())]).filter(|bytes| !bytes.is_empty())
    }
}

/// A call or tail jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference<'a> {
    /// The function it is in.
    pub function: Symbol<'a>,
    /// Where that function ends.
    pub end: u64,
    /// Address of the instruction.
    pub address: u64,
    /// Address of what is called.
    pub target: u64,
    /// The address behind it, if it comes back there.
    pub after: Option<u64>,
}

/// The text of the running kernel.
pub struct Reader<'a> {
    symbols: &'a Symbols<'a>,
    text: &'a [Text<'a>],
    /// Every text by its start, and the farthest end of it and those before it.
    order: Vec<(Text<'a>, u64)>,
    /// Every function of the kernel is in one of these, which are sorted and apart.
    known: Vec<Range<u64>>,
    /// The kernel proper's.
    core: Range<u64>,
}

impl<'a> Reader<'a> {
    /// Reads this text.
    pub fn new(symbols: &'a Symbols<'a>, text: &'a [Text<'a>]) -> Reader<'a> {
        let modules = symbols.module_text().into_iter().map(|(_, range)| range);
        let core = symbols.core_text().unwrap_or_default();
        let mut known: Vec<_> = [core.clone()].into_iter().chain(modules).collect();
        known.sort_by_key(|range| range.start);
        // The text of a module may be in pieces that lie among those of another.
        known.dedup_by(|next, before| {
            let joined = next.start <= before.end;
            if joined {
                before.end = before.end.max(next.end);
            }
            joined
        });
        let mut order: Vec<_> = text.iter().map(|&text| (text, 0)).collect();
        order.sort_by_key(|(text, _)| text.address);
        let mut farthest = 0;
        for (text, end) in &mut order {
            farthest = farthest.max(text.address.saturating_add(text.bytes.len() as u64));
            *end = farthest;
        }
        Reader { symbols, text, order, known, core }
    }

    /// Whether all of a range was given.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        let length = |text: &Text<'_>| text.from(range.start, range.end).map_or(0, <[u8]>::len) as u64;
        self.text.iter().any(|text| length(text) == range.end - range.start)
    }

    /// The bytes between two addresses, if there are that many in one text.
    pub fn bytes(&self, address: u64, end: u64) -> Option<&'a [u8]> {
        let length =
            usize::try_from(end.checked_sub(address)?).ok().filter(|&length| length <= FUNCTION_LIMIT)?;
        let texts = self.text.iter().filter_map(|text| text.from(address, end));
        texts.into_iter().find(|bytes| bytes.len() == length)
    }

    /// Every call and tail jump to one of the functions at these addresses, by address.
    pub fn references(&self, targets: &[u64]) -> Vec<Reference<'a>> {
        let mut targets = targets.to_vec();
        targets.sort_unstable();
        targets.dedup();
        let mut found = Vec::new();
        for text in self.text {
            let mut done = text.address;
            for position in arch::candidates(text.bytes, text.address, &targets) {
                // The instruction starts in front of what was found.
                let Some(address) =
                    text.address.checked_add(position as u64).and_then(|at| at.checked_sub(1))
                else {
                    continue;
                };
                if address < done {
                    continue;
                }
                let Some((function, end)) = self.symbols.enclosing(address) else { continue };
                let Some(bytes) = text.from(function.address, end) else { continue };
                done = function.address.saturating_add(bytes.len() as u64);
                if bytes.len() <= FUNCTION_LIMIT {
                    self.search(function, end, bytes, &targets, &mut found);
                }
            }
        }
        found.sort_by_key(|reference| reference.address);
        found.dedup_by_key(|reference| reference.address);
        found
    }

    /// Whether a kprobe or fentry can be set in this function: it has an entry for ftrace, or it is a part that the
    /// compiler has split off from one that has (`.cold`; kernel/trace/trace_kprobe.c, `within_notrace_func`).
    pub fn is_traceable(&self, function: Symbol<'_>) -> bool {
        if self.has_ftrace_entry(function.address) {
            return true;
        }
        let Some((whole, _)) = function.name.split_once('.') else { return false };
        let mut wholes = self.symbols.named(whole).filter(|symbol| symbol.module == function.module);
        wholes.next().is_some_and(|whole| self.has_ftrace_entry(whole.address)) && wholes.next().is_none()
    }

    /// Whether the function at this address has an entry for ftrace of its own.
    pub fn has_ftrace_entry(&self, address: u64) -> bool {
        let after = self.order.partition_point(|(text, _)| text.address <= address);
        // The first of these but where texts overlap.
        let mut near = self.order[..after].iter().rev().take_while(|(_, farthest)| address < *farthest);
        let entry = near.find_map(|(text, _)| text.from(address, u64::MAX));
        entry.is_some_and(|entry| arch::has_ftrace_entry(entry, address, |to| self.is_tracer(address, to)))
    }

    /// Whether a call at a function's entry leads to a tracer: to a trampoline of its own, or to
    /// `ftrace_caller` and its kin.
    fn is_tracer(&self, from: u64, to: u64) -> bool {
        let tracer = |(symbol, _): (Symbol<'_>, u64)| {
            symbol.name.starts_with("ftrace_") || symbol.name == "__fentry__"
        };
        self.is_detour(from, to) || self.symbols.enclosing(to).is_some_and(tracer)
    }

    /// Whether a jump from here to there is a tracer's, to a copy of what it stands on. The kernel proper leads to no
    /// module, and the copy may well lie between a module's text and its `.init.text`, which is freed.
    pub fn is_detour(&self, from: u64, to: u64) -> bool {
        if self.core.contains(&from) {
            return !self.core.contains(&to);
        }
        let after = self.known.partition_point(|range| range.start <= to);
        self.known[..after].last().is_none_or(|range| to >= range.end) || self.symbols.is_made(to)
    }

    /// Finds the references in one function.
    fn search(
        &self,
        function: Symbol<'a>,
        end: u64,
        bytes: &'a [u8],
        targets: &[u64],
        found: &mut Vec<Reference<'a>>,
    ) {
        let code = Function::new(function.address, bytes);
        let mut walk = Walk { reader: self, function: function.address, code, targets };
        let wanted = arch::candidates(bytes, function.address, targets).len();
        let (mut hits, patched) = walk.straight();
        if patched && (hits.len() < wanted || hits.iter().any(|(_, hit)| hit.has_prefixes())) {
            hits = walk.best(bytes.len());
        }
        found.extend(hits.into_iter().map(|(offset, hit)| {
            let address = function.address + offset as u64;
            let returns = matches!(hit.flow, Flow::Call(_));
            // What a function ends with does not return: the next function's entry is no place behind it.
            let after = returns.then_some(address + hit.length as u64).filter(|&after| after < end);
            Reference { function, end, address, target: hit.target, after }
        }));
    }
}

/// A reference as it is found in a function.
#[derive(Clone, Copy)]
struct Hit {
    length: usize,
    flow: Flow,
    target: u64,
}

impl Hit {
    /// Whether it is a call with prefixes. No compiler makes one; what a jump before a call has left of an instruction may
    /// look so.
    fn has_prefixes(&self) -> bool {
        matches!(self.flow, Flow::Call(_)) && self.length > arch::JUMP
    }
}

/// What is found at one place.
struct Step {
    /// Bytes to the next instruction; the first and last possible ones if that is not certain.
    next: (usize, usize),
    hit: Option<Hit>,
}

/// A way through a function's instructions.
struct Walk<'a, 'b> {
    reader: &'b Reader<'a>,
    function: u64,
    code: Function<'a>,
    targets: &'b [u64],
}

impl Walk<'_, '_> {
    /// From the start, the shortest step wherever there is a choice. Also tells whether there was one.
    fn straight(&mut self) -> (Vec<(usize, Hit)>, bool) {
        let (mut hits, mut patched, mut offset) = (Vec::new(), false, 0);
        while let Some(step) = self.step(offset) {
            hits.extend(step.hit.map(|hit| (offset, hit)));
            patched |= step.next.0 != step.next.1;
            offset += step.next.0;
        }
        (hits, patched)
    }

    /// From the start, wherever there is a choice the step from which most references are met, those without prefixes
    /// first, and the shortest of those. It is known from the end: each place is decoded once.
    fn best(&mut self, length: usize) -> Vec<(usize, Hit)> {
        let mut met = vec![0u32; length + 1];
        let most = |met: &[u32], offset: usize, step: &Step| {
            let choices = (step.next.0..=step.next.1).map(|next| (next, offset + next));
            choices
                .filter(|&(_, to)| to <= length)
                // The first of equals.
                .fold(
                    (step.next.0, 0),
                    |best, (next, to)| if met[to] > best.1 { (next, met[to]) } else { best },
                )
        };
        for offset in (0..length).rev() {
            if let Some(step) = self.step(offset) {
                let worth = step.hit.map_or(0, |hit| if hit.has_prefixes() { 1 } else { 2 });
                met[offset] = most(&met, offset, &step).1 + worth;
            }
        }
        let (mut hits, mut offset) = (Vec::new(), 0);
        while let Some(step) = self.step(offset) {
            hits.extend(step.hit.map(|hit| (offset, hit)));
            offset += most(&met, offset, &step).0;
        }
        hits
    }

    fn step(&mut self, offset: usize) -> Option<Step> {
        let found = self.code.at(offset)?;
        let certain = |found: Instruction, hit| Step { next: (found.length, found.length), hit };
        let hit = self.hit(found);
        Some(match found.flow {
            Flow::Breakpoint => {
                let hidden = self.code.hidden(offset);
                let hit = hidden.into_iter().flatten().find_map(|hidden| Some((hidden, self.hit(hidden)?)));
                match hit {
                    Some((hidden, hit)) => certain(hidden, Some(self.call_or_jump(offset, hit))),
                    None => Step { next: (1, arch::LONGEST), hit: None },
                }
            }
            Flow::Invalid => Step { next: (1, arch::LONGEST), hit: None },
            // An optimised kprobe: more than the jump itself may be overwritten.
            Flow::Jump(to)
                if hit.is_none()
                    && found.length == arch::JUMP
                    && self.reader.is_detour(self.function, to) =>
            {
                Step { next: (arch::JUMP, arch::JUMP + arch::LONGEST), hit: None }
            }
            _ => certain(found, hit),
        })
    }

    fn hit(&self, found: Instruction) -> Option<Hit> {
        let (Flow::Call(target) | Flow::Jump(target) | Flow::Branch(target)) = found.flow else {
            return None;
        };
        let Instruction { length, flow } = found;
        self.targets.binary_search(&target).is_ok().then_some(Hit { length, flow, target })
    }

    /// A breakpoint hides whether it is on a call or a jump: nothing but filler comes behind a function's last jump.
    fn call_or_jump(&mut self, offset: usize, hit: Hit) -> Hit {
        let Flow::Call(target) = hit.flow else { return hit };
        let mut offset = offset + hit.length;
        for _ in 0..FILLER_LIMIT {
            match self.code.at(offset) {
                None => break,
                Some(found) if !matches!(found.flow, Flow::Filler | Flow::Breakpoint) => return hit,
                Some(found) => offset += found.length,
            }
        }
        Hit { flow: Flow::Jump(target), ..hit }
    }
}

#[cfg(test)]
mod tests;
