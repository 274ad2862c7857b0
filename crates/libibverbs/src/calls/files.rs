//! Functions of libc that take paths or list directories. They answer for the [system files](crate::system_files) of the devices, and
//! pass everything else on.
//!
//! They replace libc's functions where the dynamic linker loads this library before libc: in a program that `headworks verbs` runs, or that
//! is linked with this library. In a program that loads the library by name nobody calls them.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, Mode, OFlags, SeekFrom, fchmod, memfd_create, seek};
use rustix::io::write;

use super::device::known;
use crate::devices::{NAMES, write_text};
use crate::errors::guarded;
use crate::objects::{locked, zeroed};
use crate::system::set_errno;
use crate::system_files::{SystemFile, is_ours, look_up};

/// A function of libc that this library has under the same name, looked up when it is needed first.
struct Next {
    name: &'static CStr,
    /// Value that the function returns on failure.
    failure: isize,
    function: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr, failure: isize) -> Self {
        Self {
            name,
            failure,
            function: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name ends with a zero.
        let function = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.function.store(function, Ordering::Relaxed);
        function
    }

    /// Calls the function. On x86-64 a call of a function with fewer parameters, or with narrower ones, is the same call. All results are
    /// integers or pointers, which come back in one register.
    ///
    /// # Safety
    ///
    /// The arguments are those of a call of the function.
    unsafe fn call(&self, args: [usize; 5]) -> usize {
        type Function = unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize) -> usize;
        let mut function = self.function.load(Ordering::Relaxed);
        if function.is_null() {
            // Called before the library was set up.
            function = self.look_up();
        }
        if function.is_null() {
            return fail(libc::ENOSYS, self.failure);
        }
        // SAFETY: the function of this name takes these arguments, by the caller's contract.
        unsafe {
            let function: Function = std::mem::transmute::<*mut c_void, Function>(function);
            function(args[0], args[1], args[2], args[3], args[4])
        }
    }
}

/// Returns the system file at `path`. The outer `None`: the path is not one of this library's; the inner one: there is no such file.
///
/// # Safety
///
/// `path` is in the first page, or ends with a zero.
unsafe fn system_file(path: *const c_char) -> Option<Option<SystemFile>> {
    // The first page is never mapped: libc's function says so.
    if path.addr() < 4096 {
        return None;
    }
    // SAFETY: the caller says so.
    let path = unsafe { CStr::from_ptr(path) };
    if !is_ours(path.to_bytes()) {
        return None;
    }
    // Without the launcher the program did not ask for this library's devices only.
    std::env::var_os(NAMES)?;
    let devices = known().unwrap_or_default();
    let about: Vec<_> = devices.iter().map(|device| &device.about).collect();
    match path.to_str() {
        // A panic must not reach the program.
        Ok(path) => guarded(|| Ok(look_up(&about, path))).unwrap_or(Some(None)),
        Err(_) => Some(None),
    }
}

/// Fails with an error number, as functions do that return an `int` or a null pointer.
fn fail(number: c_int, result: isize) -> usize {
    set_errno(number);
    result as usize
}

/// A descriptor from which the text is read.
fn text_file(text: &str, closes_on_exec: bool) -> Result<c_int, c_int> {
    let flags = match closes_on_exec {
        true => MemfdFlags::CLOEXEC,
        false => MemfdFlags::empty(),
    };
    let file = memfd_create("sysfs", flags).map_err(|error| error.raw_os_error())?;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let count = write(&file, rest).map_err(|error| error.raw_os_error())?;
        rest = &rest[count..];
    }
    // Readable only, as the kernel's are.
    let mode = Mode::from_raw_mode(0o444);
    fchmod(&file, mode).map_err(|error| error.raw_os_error())?;
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = match closes_on_exec {
        true => OFlags::RDONLY | OFlags::CLOEXEC,
        false => OFlags::RDONLY,
    };
    if let Ok(readable) = rustix::fs::open(own, flags, Mode::empty()) {
        return Ok(readable.into_raw_fd());
    }
    // Without /proc the program gets this one.
    seek(&file, SeekFrom::Start(0)).map_err(|error| error.raw_os_error())?;
    Ok(file.into_raw_fd())
}

/// A file of the kernel that is like the system file: for what programs ask about its kind and rights.
fn stand_in_path(file: &SystemFile) -> &'static CStr {
    match file {
        SystemFile::Directory(_) | SystemFile::Link(_) => c"/sys/class",
        SystemFile::Text(_) => c"/proc/version",
        SystemFile::Device => c"/dev/null",
    }
}

/// Opens a file for reading.
///
/// # Safety
///
/// As [`Next::call`], with the path at index `at` and the flags behind it.
unsafe fn open_file(next: &Next, mut args: [usize; 5], at: usize) -> usize {
    // SAFETY: the program passes a path.
    let Some(file) = (unsafe { system_file(args[at] as *const c_char) }) else {
        // SAFETY: as this function.
        return unsafe { next.call(args) };
    };
    let flags = args[at + 1] as c_int;
    let is_read = flags & (libc::O_ACCMODE | libc::O_TRUNC) == libc::O_RDONLY;
    const NEW: c_int = libc::O_CREAT | libc::O_EXCL;
    match file {
        None => fail(libc::ENOENT, -1),
        Some(_) if flags & NEW == NEW => fail(libc::EEXIST, -1),
        Some(SystemFile::Text(_)) if flags & libc::O_DIRECTORY != 0 => fail(libc::ENOTDIR, -1),
        Some(SystemFile::Text(text)) if is_read => {
            match text_file(&text, flags & libc::O_CLOEXEC != 0) {
                Ok(file) => file as usize,
                Err(number) => fail(number, -1),
            }
        }
        // A descriptor of a directory would lead to files that are not there.
        Some(SystemFile::Text(_) | SystemFile::Directory(_) | SystemFile::Link(_)) => {
            fail(libc::EACCES, -1)
        }
        Some(SystemFile::Device) => {
            args[at] = stand_in_path(&SystemFile::Device).as_ptr() as usize;
            // SAFETY: as this function; the path is another.
            unsafe { next.call(args) }
        }
    }
}

/// Asks about a file.
///
/// # Safety
///
/// As [`Next::call`], with the path at index `at`.
unsafe fn ask(next: &Next, mut args: [usize; 5], at: usize) -> usize {
    // SAFETY: the program passes a path.
    match unsafe { system_file(args[at] as *const c_char) } {
        Some(None) => return fail(libc::ENOENT, -1),
        Some(Some(file)) => args[at] = stand_in_path(&file).as_ptr() as usize,
        None => {}
    }
    // SAFETY: as this function; the path may be another.
    unsafe { next.call(args) }
}

/// Asks for a file's attributes, which are written to a `struct stat` behind the path.
///
/// # Safety
///
/// As [`ask`].
unsafe fn ask_attributes_of(next: &Next, args: [usize; 5], at: usize) -> usize {
    // SAFETY: as this function.
    unsafe { ask_numbered(next, args, at, (args[at + 1], INODE_IN_STAT)) }
}

/// Asks for a file's attributes: `statx(directory, path, flags, mask, to)`.
///
/// # Safety
///
/// As [`ask`].
unsafe fn ask_extended(next: &Next, args: [usize; 5], at: usize) -> usize {
    // SAFETY: as this function.
    unsafe { ask_numbered(next, args, at, (args[4], INODE_IN_STATX)) }
}

/// Where the number of the inode is in both structs, in bytes.
const INODE_IN_STAT: usize = std::mem::offset_of!(libc::stat64, st_ino);
const INODE_IN_STATX: usize = std::mem::offset_of!(libc::statx, stx_ino);

/// Does what [`ask`] does, and gives each system file an inode of its own, which the stand-ins have not.
///
/// # Safety
///
/// As [`ask`]; `to` is the address of the struct that is written, and where the inode is in it.
unsafe fn ask_numbered(
    next: &Next,
    args: [usize; 5],
    at: usize,
    (to, inode): (usize, usize),
) -> usize {
    let path = args[at] as *const c_char;
    // SAFETY: the program passes a path, and room for the struct. The number is aligned in it.
    unsafe {
        let found = ask(next, args, at);
        if found as c_int == 0 && matches!(system_file(path), Some(Some(_))) {
            let path = CStr::from_ptr(path).to_bytes();
            let hash = path.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
            ((to + inode) as *mut u64).write(hash);
        }
        found
    }
}

/// Opens a file as a stream.
///
/// # Safety
///
/// As [`open_file`], with the mode behind the path.
unsafe fn open_stream(next: &Next, args: [usize; 5], at: usize) -> usize {
    let [path, mode] = [args[at], args[at + 1]].map(|text| text as *const c_char);
    // SAFETY: the program passes a path and a mode.
    unsafe {
        let Some(file) = system_file(path) else {
            return next.call(args);
        };
        let text = match file {
            Some(SystemFile::Text(text)) => text,
            Some(_) => return fail(libc::EACCES, 0),
            None => return fail(libc::ENOENT, 0),
        };
        let letters = CStr::from_ptr(mode).to_bytes();
        if letters.first() != Some(&b'r') || letters.contains(&b'+') {
            return fail(libc::EACCES, 0);
        }
        match text_file(&text, letters.contains(&b'e')) {
            Ok(file) => {
                let stream = libc::fdopen(file, mode);
                if stream.is_null() {
                    libc::close(file);
                }
                stream as usize
            }
            Err(number) => fail(number, 0),
        }
    }
}

/// Reads a link. Of the system files only the device's driver is one.
///
/// # Safety
///
/// As [`ask`].
unsafe fn read_link(next: &Next, args: [usize; 5], at: usize) -> usize {
    // SAFETY: the program passes a path.
    match unsafe { system_file(args[at] as *const c_char) } {
        // SAFETY: as this function.
        None => unsafe { next.call(args) },
        Some(None) => fail(libc::ENOENT, -1),
        Some(Some(SystemFile::Link(target))) => {
            let (to, room) = (args[at + 1] as *mut u8, args[at + 2]);
            if room == 0 || to.is_null() {
                return fail(libc::EINVAL, -1);
            }
            let len = target.len().min(room);
            // SAFETY: the program has room for that many bytes.
            unsafe { to.copy_from_nonoverlapping(target.as_ptr(), len) };
            len
        }
        Some(Some(_)) => fail(libc::EINVAL, -1),
    }
}

/// Asks for extended attributes, which no system file has.
///
/// # Safety
///
/// As [`ask`].
unsafe fn ask_attributes(next: &Next, args: [usize; 5], at: usize) -> usize {
    // SAFETY: the program passes a path.
    match unsafe { system_file(args[at] as *const c_char) } {
        // SAFETY: as this function.
        None => unsafe { next.call(args) },
        Some(None) => fail(libc::ENOENT, -1),
        Some(Some(_)) => fail(libc::ENOTSUP, -1),
    }
}

/// Resolves a path. That of a system file is its own, because none is a link.
///
/// # Safety
///
/// As [`ask`], with null or room for a path behind the path.
unsafe fn resolve(next: &Next, args: [usize; 5], at: usize) -> usize {
    let path = args[at] as *const c_char;
    // SAFETY: the program passes a path, and null or room for one.
    unsafe {
        match (system_file(path), args[at + 1] as *mut c_char) {
            (None, _) => next.call(args),
            (Some(None), _) => fail(libc::ENOENT, 0),
            (Some(Some(_)), to) if to.is_null() => libc::strdup(path) as usize,
            (Some(Some(_)), to) => libc::strcpy(to, path) as usize,
        }
    }
}

/// A directory that a program reads.
struct Listing {
    names: Vec<String>,
    /// Index of the name that is read next.
    next: usize,
    entry: libc::dirent64,
}

impl Listing {
    /// Returns the next entry.
    fn advance(&mut self) -> Option<&libc::dirent64> {
        let name = self.names.get(self.next)?;
        self.entry = entry(name, self.next);
        self.next += 1;
        Some(&self.entry)
    }
}

/// The directories that the program has open, by the pointers that it holds.
static LISTINGS: Mutex<BTreeMap<usize, Box<Listing>>> = Mutex::new(BTreeMap::new());

/// Whether there are any. Looked at without the lock, because another thread may have held that when a process forked.
fn has_listings() -> bool {
    OPEN_LISTINGS.load(Ordering::Acquire) > 0
}

/// Number of [`LISTINGS`].
static OPEN_LISTINGS: AtomicUsize = AtomicUsize::new(0);

/// Runs `body` on a directory of this library's. `None` if the pointer is libc's.
fn with_listing<T>(directory: usize, body: impl FnOnce(&mut Listing) -> T) -> Option<T> {
    match has_listings() {
        true => locked(&LISTINGS)
            .get_mut(&directory)
            .map(|listing| body(listing)),
        false => None,
    }
}

/// An entry of a directory.
fn entry(name: &str, number: usize) -> libc::dirent64 {
    // SAFETY: the struct has numbers only.
    let mut entry: libc::dirent64 = unsafe { zeroed() };
    entry.d_ino = number as u64 + 1;
    entry.d_off = number as i64 + 1;
    entry.d_reclen = size_of::<libc::dirent64>() as u16;
    entry.d_type = libc::DT_UNKNOWN;
    write_text(&mut entry.d_name, name);
    entry
}

/// Opens a directory.
///
/// # Safety
///
/// As [`ask`].
unsafe fn open_directory(next: &Next, args: [usize; 5], at: usize) -> usize {
    // SAFETY: the program passes a path.
    match unsafe { system_file(args[at] as *const c_char) } {
        // SAFETY: as this function.
        None => unsafe { next.call(args) },
        Some(None) => fail(libc::ENOENT, 0),
        Some(Some(SystemFile::Directory(names))) => {
            let names = [".", ".."].map(str::to_owned).into_iter().chain(names);
            let listing = Box::new(Listing {
                names: names.collect(),
                next: 0,
                entry: entry("", 0),
            });
            let key = &raw const *listing as usize;
            locked(&LISTINGS).insert(key, listing);
            OPEN_LISTINGS.fetch_add(1, Ordering::Release);
            key
        }
        Some(Some(_)) => fail(libc::ENOTDIR, 0),
    }
}

/// Reads the next entry of a directory; null behind the last.
///
/// # Safety
///
/// As [`Next::call`], with an open directory.
unsafe fn read_directory(next: &Next, args: [usize; 5], at: usize) -> usize {
    let read = |listing: &mut Listing| {
        let entry = listing.advance();
        entry.map_or(0, |entry| std::ptr::from_ref(entry) as usize)
    };
    // SAFETY: as this function.
    with_listing(args[at], read).unwrap_or_else(|| unsafe { next.call(args) })
}

/// Begins a directory anew.
///
/// # Safety
///
/// As [`read_directory`].
unsafe fn rewind_directory(next: &Next, args: [usize; 5], at: usize) -> usize {
    let rewind = |listing: &mut Listing| {
        listing.next = 0;
        0
    };
    // SAFETY: as this function.
    with_listing(args[at], rewind).unwrap_or_else(|| unsafe { next.call(args) })
}

/// Reads the next entry of a directory into the caller's room: `readdir_r(directory, entry, result)`.
///
/// # Safety
///
/// As [`read_directory`], with room for an entry and for a pointer.
unsafe fn read_directory_to(next: &Next, args: [usize; 5], at: usize) -> usize {
    let to = args[at + 1] as *mut libc::dirent64;
    let read = |listing: &mut Listing| listing.advance().copied();
    // SAFETY: as this function.
    unsafe {
        let Some(found) = with_listing(args[at], read) else {
            return next.call(args);
        };
        let result = args[at + 2] as *mut *mut libc::dirent64;
        match found {
            Some(entry) => {
                to.write(entry);
                result.write(to);
            }
            None => result.write(std::ptr::null_mut()),
        }
        0
    }
}

/// Returns where a directory is read next.
///
/// # Safety
///
/// As [`read_directory`].
unsafe fn tell_directory(next: &Next, args: [usize; 5], at: usize) -> usize {
    // SAFETY: as this function.
    with_listing(args[at], |listing| listing.next).unwrap_or_else(|| unsafe { next.call(args) })
}

/// Sets where a directory is read next.
///
/// # Safety
///
/// As [`read_directory`].
unsafe fn seek_directory(next: &Next, args: [usize; 5], at: usize) -> usize {
    let seek = |listing: &mut Listing| {
        listing.next = args[at + 1];
        0
    };
    // SAFETY: as this function.
    with_listing(args[at], seek).unwrap_or_else(|| unsafe { next.call(args) })
}

/// Closes a directory.
///
/// # Safety
///
/// As [`read_directory`].
unsafe fn close_directory(next: &Next, args: [usize; 5], at: usize) -> usize {
    let closed = has_listings()
        .then(|| locked(&LISTINGS).remove(&args[at]))
        .flatten();
    match closed {
        Some(_) => {
            OPEN_LISTINGS.fetch_sub(1, Ordering::Release);
            0
        }
        // SAFETY: as this function.
        None => unsafe { next.call(args) },
    }
}

/// Returns the descriptor of a directory. One of system files has none.
///
/// # Safety
///
/// As [`read_directory`].
unsafe fn directory_descriptor(next: &Next, args: [usize; 5], at: usize) -> usize {
    match with_listing(args[at], |_| ()) {
        Some(()) => fail(libc::ENOTSUP, -1),
        // SAFETY: as this function.
        None => unsafe { next.call(args) },
    }
}

/// Lists a directory: `scandir(path, list, filter, order)`.
///
/// # Safety
///
/// As [`Next::call`], with the path at index `at`.
unsafe fn scan_directory(next: &Next, args: [usize; 5], at: usize) -> usize {
    type Filter = unsafe extern "C-unwind" fn(*const libc::dirent64) -> c_int;
    type Order = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;
    // SAFETY: the program passes a path, room for a pointer, and two functions or null. The entries are allocated as it frees them.
    unsafe {
        let names = match system_file(args[at] as *const c_char) {
            None => return next.call(args),
            Some(Some(SystemFile::Directory(names))) => names,
            Some(None) => return fail(libc::ENOENT, -1),
            Some(Some(_)) => return fail(libc::ENOTDIR, -1),
        };
        let filter = std::mem::transmute::<usize, Option<Filter>>(args[at + 2]);
        let order = std::mem::transmute::<usize, Option<Order>>(args[at + 3]);
        let entries = names.iter().zip(0..).map(|(name, at)| entry(name, at));
        let entries: Vec<_> = entries
            .filter(|entry| filter.is_none_or(|filter| filter(entry) != 0))
            .collect();
        let list = libc::calloc(entries.len().max(1), size_of::<*mut libc::dirent64>());
        let list = list.cast::<*mut libc::dirent64>();
        if list.is_null() {
            return fail(libc::ENOMEM, -1);
        }
        for (at, entry) in entries.iter().enumerate() {
            let copy = libc::malloc(size_of::<libc::dirent64>()).cast::<libc::dirent64>();
            if copy.is_null() {
                for made in 0..at {
                    libc::free((*list.add(made)).cast());
                }
                libc::free(list.cast());
                return fail(libc::ENOMEM, -1);
            }
            copy.write(*entry);
            list.add(at).write(copy);
        }
        if let Some(order) = order {
            let size = size_of::<*mut libc::dirent64>();
            libc::qsort(list.cast(), entries.len(), size, Some(order));
        }
        *(args[at + 1] as *mut *mut *mut libc::dirent64) = list;
        entries.len()
    }
}

/// Makes a socket. The kernel's interface to RDMA devices (netlink) knows real devices only, so the program gets none of it.
///
/// # Safety
///
/// As [`Next::call`].
unsafe fn make_socket(next: &Next, args: [usize; 5], at: usize) -> usize {
    let [family, _, protocol] = [args[at], args[at + 1], args[at + 2]].map(|arg| arg as c_int);
    let is_rdma = family == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA;
    match is_rdma && std::env::var_os(NAMES).is_some() {
        true => fail(libc::EPROTONOSUPPORT, -1),
        // SAFETY: as this function.
        false => unsafe { next.call(args) },
    }
}

/// Exports functions that pass their arguments to `$how`, with the index of the path, the directory or the first argument, and what they
/// return when they fail.
macro_rules! interpose {
    ($($how:ident $at:literal or $failure:literal { $($name:ident)* })*) => {
        $($(
            #[cfg_attr(all(target_arch = "x86_64", not(test)), unsafe(no_mangle))]
            pub(crate) unsafe extern "C-unwind" fn $name(
                a: usize,
                b: usize,
                c: usize,
                d: usize,
                e: usize,
            ) -> usize {
                // SAFETY: the program passes the arguments of the function.
                unsafe { $how(&next::$name, [a, b, c, d, e], $at) }
            }
            // Unit tests export nothing.
            const _: *const () = $name as *const ();
        )*)*

        /// libc's functions.
        #[expect(non_upper_case_globals, reason = "they have the names of functions")]
        mod next {
            use super::{CStr, Next};

            $($(
                pub(super) static $name: Next = Next::new(
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    },
                    $failure,
                );
            )*)*
        }

        /// The functions above, to look up at load.
        static ALL: &[&Next] = &[$($(&next::$name,)*)*];
    };
}

/// Looks up libc's functions when the library is loaded: a program may call them first in a forked child or in the handler of a signal, where
/// the dynamic linker must not be asked.
extern "C" fn look_up_all() {
    for next in ALL {
        next.look_up();
    }
}

// SAFETY: the section lists functions that are called when the library is loaded. This one needs nothing that is set up later.
#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static AT_LOAD: extern "C" fn() = look_up_all;

interpose! {
    open_file 0 or -1 { open open64 __open_2 __open64_2 }
    open_file 1 or -1 { openat openat64 __openat_2 __openat64_2 }
    open_stream 0 or 0 { fopen fopen64 }
    ask 0 or -1 { access euidaccess eaccess }
    ask 1 or -1 { faccessat }
    ask_attributes_of 0 or -1 { stat stat64 lstat lstat64 }
    ask_attributes_of 1 or -1 { fstatat fstatat64 __xstat __xstat64 __lxstat __lxstat64 }
    ask_attributes_of 2 or -1 { __fxstatat __fxstatat64 }
    ask_extended 1 or -1 { statx }
    read_link 0 or -1 { readlink }
    read_link 1 or -1 { readlinkat }
    ask_attributes 0 or -1 { getxattr lgetxattr listxattr llistxattr }
    resolve 0 or 0 { realpath __realpath_chk }
    open_directory 0 or 0 { opendir }
    read_directory 0 or 0 { readdir readdir64 }
    read_directory_to 0 or -1 { readdir_r readdir64_r }
    rewind_directory 0 or -1 { rewinddir }
    tell_directory 0 or -1 { telldir }
    seek_directory 0 or -1 { seekdir }
    close_directory 0 or -1 { closedir }
    directory_descriptor 0 or -1 { dirfd }
    scan_directory 0 or -1 { scandir scandir64 }
    make_socket 0 or -1 { socket }
}
