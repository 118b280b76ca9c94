//! The contexts that a driver lists.

use std::mem::offset_of;

use bytemuck::{bytes_of_mut, cast_slice_mut};

use crate::sys::abi::ContextInfo;
use crate::sys::{Errno, File, Pointed, Sys};
use crate::uapi;

/// The most contexts that an answer has room for. The driver has at most 6.
const CONTEXTS_LISTED: usize = 32;

/// Returns the hardware contexts of all processes.
pub(crate) fn contexts(sys: &dyn Sys, file: File) -> Result<Vec<ContextInfo>, Errno> {
    let mut listed = [ContextInfo::default(); CONTEXTS_LISTED];
    let bytes = cast_slice_mut(&mut listed);
    let buffer_size = bytes.len() as u32;
    let mut question = uapi::GetInfo { param: uapi::INFO_HW_CONTEXTS, buffer_size, buffer: 0 };
    let field = offset_of!(uapi::GetInfo, buffer);
    let mut pointed = [Pointed { field, bytes }];
    sys.ioctl(file, uapi::GET_INFO, bytes_of_mut(&mut question), &mut pointed)?;
    // Room that is left has no process.
    Ok(listed.into_iter().filter(|context| context.pid != 0).collect())
}
