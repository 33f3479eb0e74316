//! What is counted at a call of `import_iovec` (lib/iov_iter.c) and its kin.

/// `UIO_MAXIOV` (include/uapi/linux/uio.h): more segments than this are refused by the kernel with `EINVAL`.
pub const MAX_SEGMENTS: u32 = 1024;

/// Inclusive upper bounds of the segment histogram; one more bucket follows for everything above.
pub const SEGMENT_BOUNDS: [u32; 12] = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Buckets of the segment histogram, the overflow bucket included.
pub const SEGMENT_BUCKETS: usize = SEGMENT_BOUNDS.len() + 1;

/// The bucket of a call with `segments` segments: the first whose bound is not below it.
#[inline(always)]
pub const fn segment_bucket(segments: u32) -> usize {
    let mut bucket = 0;
    while bucket < SEGMENT_BOUNDS.len() {
        if segments <= SEGMENT_BOUNDS[bucket] {
            return bucket;
        }
        bucket += 1;
    }
    bucket
}

/// [`segment_bucket`] of every legal segment count, for the kernel side, where a load beats a search.
pub const SEGMENT_BUCKET: [u8; MAX_SEGMENTS as usize + 1] = {
    let mut table = [0; MAX_SEGMENTS as usize + 1];
    let mut segments = 0;
    while segments < table.len() {
        table[segments] = segment_bucket(segments as u32) as u8;
        segments += 1;
    }
    table
};

/// Totals of one path on one CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportRecord {
    /// Calls by segment count, see [`SEGMENT_BOUNDS`]. Their sum is the number of calls.
    pub buckets: [u64; SEGMENT_BUCKETS],
    /// Segments asked for, by calls with at most [`MAX_SEGMENTS`], but not with one.
    pub segments: u64,
    /// Bytes imported, as the function returned them.
    pub bytes: u64,
    /// Calls that returned an error.
    pub errors: u64,
    /// Calls whose iovec array did not fit the caller's own (`nr_segs > fast_segs`) and was allocated.
    pub allocated: u64,
    /// Fills three cache lines, so that no two CPUs share one.
    pub pad: [u64; 7],
}

const _: () = assert!(size_of::<ImportRecord>() == 192);

macro_rules! paths {
    ($($variant:ident $name:literal $doc:literal)*) => {
        /// The way user space reached the import.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Path {
            $(#[doc = $doc] $variant,)*
        }

        impl Path {
            /// Every path, in the order of its number.
            pub const ALL: &[Path] = &[$(Path::$variant),*];

            /// The name in metrics, tables and JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Path::$variant => $name),* }
            }
        }
    };
}

paths! {
    Readv "readv" "`readv(2)`."
    Writev "writev" "`writev(2)`."
    Preadv "preadv" "`preadv(2)`."
    Pwritev "pwritev" "`pwritev(2)`."
    Preadv2 "preadv2" "`preadv2(2)`."
    Pwritev2 "pwritev2" "`pwritev2(2)`."
    Sendmsg "sendmsg" "`sendmsg(2)`."
    Recvmsg "recvmsg" "`recvmsg(2)`."
    Sendmmsg "sendmmsg" "`sendmmsg(2)`, once per message."
    Recvmmsg "recvmmsg" "`recvmmsg(2)`, once per message."
    IoUring "io_uring" "io_uring requests, whichever thread prepares them."
    Aio "aio" "`io_submit(2)` with `IOCB_CMD_PREADV` or `IOCB_CMD_PWRITEV`."
    ProcessVm "process_vm" "`process_vm_readv(2)` and `process_vm_writev(2)`, the local side."
    ProcessVmRemote "process_vm_remote" "`process_vm_readv(2)` and `process_vm_writev(2)`, the remote side; bytes are not known."
    Vmsplice "vmsplice" "`vmsplice(2)`."
    Madvise "madvise" "`process_madvise(2)`."
    Keyctl "keyctl" "`keyctl(KEYCTL_INSTANTIATE_IOV)`."
    Block "block" "Vectored passthrough to a block or SCSI device (`SG_IO`, NVMe)."
    Other "other" "Any other caller the running kernel has; `iotrace check` names the function."
}

impl Path {
    /// How many paths there are.
    pub const COUNT: usize = Path::ALL.len();

    /// The path with this number.
    pub fn from_index(index: usize) -> Option<Path> {
        Path::ALL.get(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_lies_between_its_bounds() {
        for segments in 0..=2 * MAX_SEGMENTS {
            let bucket = segment_bucket(segments);
            if bucket < SEGMENT_BOUNDS.len() {
                assert!(segments <= SEGMENT_BOUNDS[bucket]);
            }
            if bucket > 0 {
                assert!(segments > SEGMENT_BOUNDS[bucket - 1]);
            }
            if let Some(&entry) = SEGMENT_BUCKET.get(segments as usize) {
                assert_eq!(usize::from(entry), bucket);
            }
        }
    }

    #[test]
    fn one_segment_has_a_bucket_of_its_own() {
        assert_eq!([0, 1, 2, 3].map(segment_bucket), [0, 1, 2, 3]);
    }

    #[test]
    fn paths_are_numbered_in_order() {
        for (index, path) in Path::ALL.iter().enumerate() {
            assert_eq!(*path as usize, index);
            assert_eq!(Path::from_index(index), Some(*path));
        }
        assert_eq!(Path::from_index(Path::COUNT), None);
    }
}
