//! How much memory the kernel side's maps take, as the kernel counts it.

use std::{
    collections::BTreeMap,
    fs,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::{Ebpf, maps::Map};

/// Bytes of each map, by its name. A map that the kernel says nothing of is left out.
///
/// Exact from 6.4 on (`map_mem_usage`); before, the kernel reckons it from the size of keys and values.
pub(super) fn bytes(ebpf: &Ebpf) -> BTreeMap<String, u64> {
    let bytes = |(name, map): (&str, &Map)| {
        // The kinds that the kernel side has.
        let (Map::Array(data) | Map::HashMap(data) | Map::PerCpuArray(data) | Map::RingBuf(data)) = map
        else {
            return None;
        };
        let file = data.fd().as_fd().as_raw_fd();
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{file}")).ok()?;
        Some((name.to_owned(), memlock(&text)?))
    };
    ebpf.maps().filter_map(bytes).collect()
}

/// Of `bpf_map_show_fdinfo` (kernel/bpf/syscall.c).
fn memlock(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use aya_obj::Object;

    #[test]
    fn the_number_is_found() {
        let text =
            "pos:\t0\nflags:\t02000002\nmap_type:\t2\nmax_entries:\t130\nmemlock:\t40960\nmap_id:\t11\n";
        assert_eq!(memlock(text), Some(40_960));
        assert_eq!(memlock("map_type:\t2\n"), None);
    }

    /// `BPF_MAP_TYPE_HASH`, `ARRAY`, `PERCPU_ARRAY` and `RINGBUF` (include/uapi/linux/bpf.h).
    #[test]
    fn every_kind_of_map_is_known_here() {
        for (name, map) in Object::parse(super::super::OBJECT).unwrap().maps {
            assert!([1, 2, 6, 27].contains(&map.map_type()), "{name}");
        }
    }
}
