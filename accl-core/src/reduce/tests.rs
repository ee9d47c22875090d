//! Every path against the oracle.

use proptest::prelude::*;

use super::oracle::{BF16, E4M3, E5M2, F16, Narrow, Oracle};
use super::{Form, Path, Reduction, Source, format};
use crate::types::{DataType, ReduceOp, Scalar};
