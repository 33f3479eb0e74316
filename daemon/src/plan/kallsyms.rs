//! `/proc/kallsyms` as a table of the functions of the kernel and its modules.
//!
//! Only text symbols are kept, at 24 bytes each and without a copy of any name: the file has 200,000 lines and is
//! read at every start.
//!
//! Whatever the file says, reading it takes time in proportion to its length (and its logarithm, to sort) and no
//! more memory than 16 times its length. A question by name touches the functions that have it.

use std::collections::HashMap;
use std::ops::Range;

/// A module whose symbols span more than this is left out: no module has so much text.
const MODULE_LIMIT: u64 = 64 << 20;
/// Nor have all modules together: those behind the first that have so much are left out.
const MODULES_LIMIT: u64 = 512 << 20;
/// `KSYM_NAME_LEN` was 128, is 512 and may grow.
const NAME_LIMIT: usize = 1024;
/// `MODULE_NAME_LEN` is 56.
const MODULE_NAME_LIMIT: usize = 255;
/// Module text is mapped in whole pages.
const PAGE: u64 = 4096;
/// The number that stands for the kernel proper.
const KERNEL: u16 = 0;
/// The number of all pseudo-modules.
const MADE: u16 = u16::MAX;

/// Why there are no symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SymbolsError {
    /// A line that does not read `address type name`.
    #[error("kallsyms, offset {offset}: {cause}")]
    Malformed {
        /// Offset of the line.
        offset: usize,
        /// What is wrong with it.
        cause: &'static str,
    },
    /// Every address is 0: the kernel hides them (`kernel.kptr_restrict`, or a missing `CAP_SYSLOG`).
    #[error("kallsyms shows no addresses (kernel.kptr_restrict, or CAP_SYSLOG is missing)")]
    Restricted,
    /// There is no function at all.
    #[error("kallsyms has no functions")]
    Empty,
}

/// A function as `/proc/kallsyms` lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its name, with whatever suffix the compiler gave it.
    pub name: &'a str,
    /// Its first byte.
    pub address: u64,
    /// The module it is in; `None` for the kernel proper.
    pub module: Option<&'a str>,
}

#[derive(Clone, Copy)]
struct Entry {
    address: u64,
    /// Where the name is in the file.
    name: u32,
    length: u16,
    module: u16,
}

/// The functions of the running kernel, by address and by name.
pub struct Symbols<'a> {
    file: &'a [u8],
    /// By address; names that share an address in the order of the file.
    entries: Vec<Entry>,
    /// [`digest`] of each entry's name in the upper half, the entry's number in the lower, sorted: a search by name
    /// touches few names.
    by_name: Vec<u64>,
    /// Names of the modules; the kernel proper has number [`KERNEL`].
    modules: Vec<&'a str>,
    /// Where text made at run time starts, sorted.
    made: Vec<u64>,
}

/// Where the kernel proper's data with this name is, whatever its type.
pub fn data(file: &[u8], name: &str) -> Option<u64> {
    let mut lines = file.split(|&byte| byte == b'\n');
    let line = lines.find(|line| {
        // Address, type and name, a blank between them.
        line.len() > name.len() + 3
            && line.ends_with(name.as_bytes())
            && line[..line.len() - name.len()].ends_with(b" ")
    })?;
    let address = str::from_utf8(line.split(|&byte| byte == b' ').next()?).ok()?;
    u64::from_str_radix(address, 16).ok().filter(|&address| address != 0)
}

impl<'a> Symbols<'a> {
    /// Reads `/proc/kallsyms`. Data symbols and the kernel's pseudo-modules (`[bpf]`, `[__builtin__kprobes]`: text
    /// made at run time) are no functions here: nothing but where they start is kept. A last line without its end is
    /// skipped.
    pub fn parse(file: &'a [u8]) -> Result<Symbols<'a>, SymbolsError> {
        if u32::try_from(file.len()).is_err() {
            return Err(SymbolsError::Malformed { offset: 0, cause: "more than 4 GiB" });
        }
        let mut modules = Modules::default();
        // A line has 45 bytes or so, and half of the symbols are functions.
        let mut entries = Vec::with_capacity(file.len() / 80);
        let (mut made, mut hidden) = (Vec::new(), false);
        let mut offset = 0;
        while let Some(length) = line_length(&file[offset..]) {
            let line = &file[offset..offset + length];
            let malformed = |cause| SymbolsError::Malformed { offset, cause };
            if let Some(entry) = function(line, offset, &mut modules).map_err(malformed)? {
                match entry.address {
                    0 => hidden = true,
                    address if entry.module == MADE => made.push(address),
                    _ => entries.push(entry),
                }
            }
            offset += length + 1;
        }
        if entries.is_empty() {
            return Err(if hidden { SymbolsError::Restricted } else { SymbolsError::Empty });
        }
        // Stable, and quick on a file that is in order but for its modules.
        entries.sort_by_key(|entry| entry.address);
        let digests = entries.iter().map(|entry| u64::from(digest(name_bytes(file, entry))) << 32);
        let mut by_name: Vec<u64> = digests.zip(0u64..).map(|(digest, number)| digest | number).collect();
        by_name.sort_unstable();
        made.sort_unstable();
        Ok(Symbols { file, entries, by_name, modules: modules.names, made })
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Never: a table without functions is an error of [`Symbols::parse`].
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Every function with this name, by address: static functions may share one.
    pub fn named(&self, name: &str) -> impl Iterator<Item = Symbol<'a>> {
        let wanted = u64::from(digest(name.as_bytes()));
        let first = self.by_name.partition_point(|&key| key >> 32 < wanted);
        self.by_name[first..]
            .iter()
            .take_while(move |&&key| key >> 32 == wanted)
            .map(|&key| self.symbol(key as u32 as usize))
            .filter(move |symbol| symbol.name == name)
    }

    /// The address of the kernel proper's function with this name, if it has just one.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        let mut found = self.named(name).filter(|symbol| symbol.module.is_none());
        let address = found.next()?.address;
        found.next().is_none().then_some(address)
    }

    /// The function an address is in, and where it ends: at the next function's first byte. Of several names for one
    /// address, the first that the kernel lists.
    pub fn enclosing(&self, address: u64) -> Option<(Symbol<'a>, u64)> {
        let after = self.entries.partition_point(|entry| entry.address <= address);
        let start = self.entries.get(after.checked_sub(1)?)?.address;
        let first = self.entries.partition_point(|entry| entry.address < start);
        let symbol = self.symbol(first);
        let end = self.entries.get(after).map_or(u64::MAX, |entry| entry.address);
        Some((symbol, end))
    }

    /// The text of the kernel proper (`_stext` to `_etext`); what is behind it ran at boot and is gone.
    pub fn core_text(&self) -> Option<Range<u64>> {
        let range = self.address_of("_stext")?..self.address_of("_etext")?;
        (range.start < range.end).then_some(range)
    }

    /// The text of each module, from its first function to the end of the page behind its last one's start, in
    /// the order of addresses.
    pub fn module_text(&self) -> Vec<(String, Range<u64>)> {
        let mut spans: Vec<Option<Range<u64>>> = vec![None; self.modules.len()];
        for entry in self.entries.iter().filter(|entry| entry.module != KERNEL) {
            if let Some(span) = spans.get_mut(usize::from(entry.module)) {
                let start = span.as_ref().map_or(entry.address, |span| span.start);
                *span = Some(start..entry.address);
            }
        }
        let mut texts: Vec<_> = spans
            .into_iter()
            .zip(&self.modules)
            .filter_map(|(span, &name)| {
                let span = span?;
                let page = span.end & !(PAGE - 1);
                let end = page.checked_add(2 * PAGE)?.min(self.next_other(span.end));
                (end - span.start <= MODULE_LIMIT).then(|| (name.to_owned(), span.start..end))
            })
            .collect();
        texts.sort_by_key(|(_, span)| span.start);
        let mut total = 0;
        texts.retain(|(_, span)| {
            total += span.end - span.start;
            total <= MODULES_LIMIT
        });
        texts
    }

    /// Whether an address is in a page at whose start the kernel has put text made at run time, as it does for kprobes
    /// (`kprobe_optinsn_page`, from 5.9 on).
    pub fn is_made(&self, address: u64) -> bool {
        self.made.binary_search(&(address & !(PAGE - 1))).is_ok()
    }

    /// The address of the first function behind `address`.
    fn next_other(&self, address: u64) -> u64 {
        let after = self.entries.partition_point(|entry| entry.address <= address);
        self.entries.get(after).map_or(u64::MAX, |entry| entry.address)
    }

    fn symbol(&self, index: usize) -> Symbol<'a> {
        let entry = &self.entries[index];
        let name = str::from_utf8(name_bytes(self.file, entry)).unwrap_or_default();
        let module = match entry.module {
            KERNEL => None,
            number => self.modules.get(usize::from(number)).copied(),
        };
        Symbol { name, address: entry.address, module }
    }
}

/// The modules met so far. The pseudo-modules all have number [`MADE`].
struct Modules<'a> {
    names: Vec<&'a str>,
    numbers: HashMap<&'a [u8], u16>,
    /// The one before: a module's symbols follow each other.
    last: (&'a [u8], u16),
}

impl Default for Modules<'_> {
    fn default() -> Self {
        Modules { names: vec![""], numbers: HashMap::new(), last: (b"", KERNEL) }
    }
}

impl<'a> Modules<'a> {
    fn number(&mut self, name: &'a [u8]) -> Result<u16, &'static str> {
        if self.last.0 != name {
            let number = match self.numbers.get(name) {
                Some(&number) => number,
                None => self.add(name)?,
            };
            self.last = (name, number);
        }
        Ok(self.last.1)
    }

    fn add(&mut self, name: &'a [u8]) -> Result<u16, &'static str> {
        if name.len() > MODULE_NAME_LIMIT {
            return Err("the module's name is too long");
        }
        let text = str::from_utf8(name).map_err(|_| "the module's name is not UTF-8")?;
        let number = if text.is_empty() || text == "bpf" || text.starts_with("__builtin__") {
            MADE
        } else {
            let number = u16::try_from(self.names.len()).ok().filter(|&number| number != MADE);
            let number = number.ok_or("more than 65534 modules")?;
            self.names.push(text);
            number
        };
        self.numbers.insert(name, number);
        Ok(number)
    }
}

/// One line, `ffffffff81000000 T _stext` or `ffffffffc0007900 t tun_get_user\t[tun]`, if it is a function's.
fn function<'a>(
    line: &'a [u8],
    offset: usize,
    modules: &mut Modules<'a>,
) -> Result<Option<Entry>, &'static str> {
    let (address, digits) = hexadecimal(line)?;
    let [b' ', kind, b' ', name @ ..] = &line[digits..] else {
        return Err("not `address type name`");
    };
    if !matches!(kind, b't' | b'T' | b'w' | b'W') {
        return Ok(None);
    }
    let (length, module) = match name.iter().position(|&byte| byte == b'\t') {
        None => (name.len(), KERNEL),
        Some(tab) => match &name[tab + 1..] {
            [b'[', module @ .., b']'] => (tab, modules.number(module)?),
            _ => return Err("the module is not in brackets"),
        },
    };
    if length > NAME_LIMIT {
        return Err("the name is too long");
    }
    if length == 0 || str::from_utf8(&name[..length]).is_err() {
        return Err("the name is empty or not UTF-8");
    }
    // Both fit: the file has less than 4 GiB.
    let (name, length) = ((offset + digits + 3) as u32, length as u16);
    Ok(Some(Entry { address, name, length, module }))
}

/// The number at the start of a line, and how many digits it has.
fn hexadecimal(line: &[u8]) -> Result<(u64, usize), &'static str> {
    let mut value = 0;
    for (position, &byte) in line.iter().enumerate() {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ if position == 0 => return Err("no address"),
            _ => return Ok((value, position)),
        };
        if position == 16 {
            return Err("the address has more than 64 bits");
        }
        value = value << 4 | u64::from(digit);
    }
    Err("nothing behind the address")
}

/// Bytes up to the next line feed, eight at a time.
fn line_length(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut words = bytes.chunks_exact(8);
    let mut offset = 0;
    for word in &mut words {
        let word = word.try_into().map(u64::from_le_bytes).unwrap_or_default() ^ (ONES * u64::from(b'\n'));
        // The lowest set bit marks the first byte that is 0 now, which was a line feed.
        let zero = word.wrapping_sub(ONES) & !word & (ONES << 7);
        if zero != 0 {
            return Some(offset + zero.trailing_zeros() as usize / 8);
        }
        offset += 8;
    }
    let rest = words.remainder().iter().position(|&byte| byte == b'\n')?;
    Some(offset + rest)
}

fn name_bytes<'a>(file: &'a [u8], entry: &Entry) -> &'a [u8] {
    let start = entry.name as usize;
    &file[start..start + usize::from(entry.length)]
}

/// A number that is equal for equal names and rarely for others: from the length and both ends.
fn digest(name: &[u8]) -> u32 {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let edge = name.len().min(8);
    let (head, tail) = (word(&name[..edge]), word(&name[name.len() - edge..]));
    let mixed = (head ^ tail.rotate_left(29) ^ name.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

#[cfg(test)]
mod tests;
