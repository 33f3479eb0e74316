//! Questions to the kernel's types.

use super::{Btf, DEPTH, Kind, Type, records, word};

/// How many members one question may look at: no struct of a kernel has nearly as many, nested ones included.
const BUDGET: usize = 100_000;
/// More parameters than the kernel traces a function with (`MAX_BPF_FUNC_ARGS` is 12).
const PARAMETERS: usize = 16;
/// `BTF_INT_BOOL` in the word that follows an integer.
const BOOL: u32 = 4 << 24;

/// A function's prototype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prototype<'a> {
    /// The parameters in order, no more than 16 of them.
    pub parameters: Vec<Parameter<'a>>,
    /// What it returns.
    pub returns: Value,
}

/// A parameter of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// Its name; empty if the kernel has none.
    pub name: &'a str,
    /// Whether it is a `struct iov_iter *`.
    pub is_iter: bool,
}

/// What a function returns, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Void,
    /// `bool`.
    Bool,
    /// Any other integer.
    Integer,
    /// A pointer, a struct, an enum.
    Other,
}

/// The prototypes that functions of one name have.
#[derive(Clone)]
enum Found<'a> {
    None,
    One(Prototype<'a>),
    Several,
}

impl<'a> Btf<'a> {
    /// The prototypes of the functions with these names, in the same order, from one pass. `None` for a name that
    /// no function has, or that stands for functions with different prototypes.
    pub fn prototypes(&self, names: &[&str]) -> Vec<Option<Prototype<'a>>> {
        let mut order = names.to_vec();
        order.sort_unstable();
        order.dedup();
        let mut found = vec![Found::None; order.len()];
        for function in self.iter().filter(|found| found.kind == Kind::Function) {
            let Ok(index) = order.binary_search(&self.string(function.name)) else { continue };
            if !matches!(found[index], Found::Several)
                && let Some(prototype) = self.prototype(function)
            {
                found[index] = match &found[index] {
                    Found::One(other) if *other != prototype => Found::Several,
                    _ => Found::One(prototype),
                };
            }
        }
        let one = |name: &&str| match &found[order.binary_search(name).ok()?] {
            Found::One(prototype) => Some(prototype.clone()),
            Found::None | Found::Several => None,
        };
        names.iter().map(one).collect()
    }

    fn prototype(&self, function: Type<'a>) -> Option<Prototype<'a>> {
        let prototype = self.get(function.value).filter(|found| found.kind == Kind::Prototype)?;
        let parameters = records(prototype.rest, 2)
            .take(PARAMETERS)
            .map(|parameter| {
                Some(Parameter {
                    name: self.string(word(parameter, 0)?),
                    is_iter: self.is_iter(word(parameter, 4)?),
                })
            })
            .collect::<Option<_>>()?;
        Some(Prototype { parameters, returns: self.value(prototype.value) })
    }

    fn is_iter(&self, number: u32) -> bool {
        let pointed = self.resolve(number).filter(|found| found.kind == Kind::Pointer);
        let structure = pointed.and_then(|found| self.resolve(found.value));
        structure.is_some_and(|found| found.kind == Kind::Struct && self.is_named(found.name, "iov_iter"))
    }

    fn value(&self, number: u32) -> Value {
        if number == 0 {
            return Value::Void;
        }
        match self.resolve(number) {
            Some(Type { kind: Kind::Int, rest, .. }) => match word(rest, 0) {
                Some(encoding) if encoding & BOOL != 0 => Value::Bool,
                _ => Value::Integer,
            },
            _ => Value::Other,
        }
    }

    /// The offset in bytes of a member of a struct, such as `thread_info.status` of `task_struct`. Members of
    /// anonymous structs and unions are found as C finds them.
    pub fn offset_of(&self, structure: &str, path: &str) -> Option<u32> {
        let mut budget = BUDGET;
        self.structures(structure).find_map(|found| {
            let mut found = Some(found);
            let mut offset = 0u32;
            for name in path.split('.') {
                let (bits, number) = self.member(found?, name, DEPTH, &mut budget)?;
                offset = offset.checked_add(bits)?;
                found = self.resolve(number);
            }
            offset.is_multiple_of(8).then_some(offset / 8)
        })
    }

    /// The number of the struct with this name.
    pub fn structure(&self, name: &str) -> Option<u32> {
        self.number(name, |found| matches!(found.kind, Kind::Struct) && !found.rest.is_empty())
    }

    /// The number of the function with this name.
    pub fn function(&self, name: &str) -> Option<u32> {
        self.number(name, |found| found.kind == Kind::Function)
    }

    fn number(&self, name: &str, wanted: impl Fn(&Type<'a>) -> bool) -> Option<u32> {
        let place = self.iter().position(|found| self.is_named(found.name, name) && wanted(&found))?;
        u32::try_from(place + 1).ok()
    }

    /// The size of a struct in bytes.
    pub fn size_of(&self, structure: &str) -> Option<u32> {
        self.structures(structure).map(|found| found.value).find(|&size| size > 0)
    }

    /// Where a member starts, in bits, and its type.
    fn member(
        &self,
        structure: Type<'a>,
        name: &str,
        depth: usize,
        budget: &mut usize,
    ) -> Option<(u32, u32)> {
        let depth = depth.checked_sub(1)?;
        if !matches!(structure.kind, Kind::Struct | Kind::Union) {
            return None;
        }
        for member in records(structure.rest, 3) {
            *budget = budget.checked_sub(1)?;
            let (found, number) = (word(member, 0)?, word(member, 4)?);
            let mask = if structure.flag { 0x00ff_ffff } else { u32::MAX };
            let offset = word(member, 8)? & mask;
            if self.is_named(found, name) {
                return Some((offset, number));
            }
            if self.is_anonymous(found)
                && let Some(inner) = self.resolve(number)
                && let Some((bits, number)) = self.member(inner, name, depth, budget)
            {
                return Some((offset.checked_add(bits)?, number));
            }
        }
        None
    }

    /// The members of an enum with their values, in the order of the kernel's source.
    pub fn enumeration(&self, name: &str) -> Option<Vec<(&'a str, u64)>> {
        let wanted = |found: &Type<'a>| {
            matches!(found.kind, Kind::Enum | Kind::Enum64)
                && !found.rest.is_empty()
                && self.is_named(found.name, name)
        };
        let found = self.iter().find(wanted)?;
        let long = found.kind == Kind::Enum64;
        records(found.rest, if long { 3 } else { 2 })
            .map(|member| {
                let high = if long { word(member, 8)? } else { 0 };
                let value = u64::from(high) << 32 | u64::from(word(member, 4)?);
                Some((self.string(word(member, 0)?), value))
            })
            .collect()
    }

    fn structures(&self, name: &str) -> impl Iterator<Item = Type<'a>> {
        self.iter().filter(move |found| {
            matches!(found.kind, Kind::Struct | Kind::Union) && self.is_named(found.name, name)
        })
    }
}
