//! JSON as text that is looked at once and kept as it is.
//!
//! [`validate`] says whether a text is one well-formed value, and [`Object`] is one level of an object: its
//! values stay slices of the text, so numbers, key order and spelling below that level cannot change on the way
//! through. [`Path`] leads to a value below it. [`splice`] sets fields in a text that otherwise stays as it is; [`is_too_deep`] says only how it nests, and [`value`] reads all of it.
//! [`SyntaxError`] says where and why a text is malformed.

mod depth;
mod object;
mod path;
mod scan;
mod splice;
mod syntax_error;
mod text;
mod token;

pub use depth::{is_too_deep, value};
pub use object::{Object, ObjectError};
pub use path::{Path, PathError};
pub use scan::{MAX_DEPTH, validate};
pub use splice::splice;
pub use syntax_error::{Problem, SyntaxError};
pub use text::{quote, unquote};
