//! Typed ids and the tables that only they can index.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, Range};

/// A typed row number. `u32::MAX` is never a row.
pub trait Id: Copy + Eq + Ord {
    fn from_index(index: usize) -> Self;
    fn index(self) -> usize;
}

macro_rules! define_id {
    ($($(#[$doc:meta])* $name:ident $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl Id for $name {
            fn from_index(index: usize) -> Self {
                assert!(index < u32::MAX as usize, "a table holds fewer than 2^32 - 1 rows");
                Self(index as u32)
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

define_id! {
    /// One operation of a graph.
    NodeId "n";
    /// A tensor that a node makes, a weight, or a version of a state.
    ValueId "%";
    /// A row of the weight table.
    WeightId "w";
    /// A row of the state table.
    StateId "s";
    /// A device of the configuration; to this crate a plain number.
    DeviceId "d";
}

/// One `T` for each `K`, in creation order. Rows are never removed, so ids stay good.
/// Only a `K` can index it: a [`NodeId`] in a table of values does not compile.
#[derive(Clone, PartialEq)]
pub struct Table<K, T>(Vec<T>, PhantomData<fn(K)>);

impl<K: Id, T> Table<K, T> {
    pub fn new() -> Self {
        Self(Vec::new(), PhantomData)
    }

    pub fn push(&mut self, row: T) -> K {
        self.0.push(row);
        K::from_index(self.0.len() - 1)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + use<K, T> {
        (0..self.0.len()).map(K::from_index)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &T)> {
        self.0.iter().enumerate().map(|(i, row)| (K::from_index(i), row))
    }

    pub fn values(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    pub fn get(&self, key: K) -> Option<&T> {
        self.0.get(key.index())
    }

    pub fn set(&mut self, key: K, row: T) {
        self.0[key.index()] = row;
    }
}

impl<K: Id, T> Default for Table<K, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Id, T> FromIterator<T> for Table<K, T> {
    fn from_iter<I: IntoIterator<Item = T>>(rows: I) -> Self {
        Self(rows.into_iter().collect(), PhantomData)
    }
}

impl<K: Id, T> Index<K> for Table<K, T> {
    type Output = T;
    fn index(&self, key: K) -> &T {
        &self.0[key.index()]
    }
}

impl<K: Id + fmt::Debug, T: fmt::Debug> fmt::Debug for Table<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// A run of rows in a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rows {
    pub first: u32,
    pub count: u32,
}

impl Rows {
    pub fn of(range: Range<usize>) -> Self {
        let narrow = |n: usize| u32::try_from(n).expect("a pool holds fewer than 2^32 rows");
        Self { first: narrow(range.start), count: narrow(range.len()) }
    }

    pub fn range(self) -> Range<usize> {
        self.first as usize..self.first as usize + self.count as usize
    }
}
