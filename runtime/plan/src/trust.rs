//! Whose word is taken for machine code.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Who else may write a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// Every user.
    Others { mode: u32 },
    /// A group that is not the user's own.
    Group { mode: u32, group: u32 },
    /// An owner that is neither the user nor root.
    Owner { owner: u32, user: u32 },
}

/// Whom this process runs as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub user: u32,
    /// The primary group.
    pub group: u32,
}

impl Distrust {
    /// Why `user` should not run code in the file `found`, if there is a reason.
    pub(crate) fn of(found: &Metadata, user: User) -> Option<Self> {
        Self::judge(found.mode() & 0o7777, found.uid(), found.gid(), user)
    }

    fn judge(mode: u32, owner: u32, group: u32, User { user, group: own }: User) -> Option<Self> {
        if owner != user && owner != 0 {
            return Some(Self::Owner { owner, user });
        }
        if mode & 0o002 != 0 {
            return Some(Self::Others { mode });
        }
        (mode & 0o020 != 0 && group != own).then_some(Self::Group { mode, group })
    }
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Others { mode } => write!(
                f,
                "can be written by every user (mode {mode:o}): run `chmod o-w` on it if you trust \
                 what is in it"
            ),
            Self::Group { mode, group } => write!(
                f,
                "can be written by group {group}, which is not your own (mode {mode:o}): run \
                 `chmod g-w` on it if you trust what is in it"
            ),
            Self::Owner { owner, user } => write!(
                f,
                "belongs to user {owner}, you are user {user}: compile the model again, or copy \
                 the plan if you trust what is in it"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_user_and_root_may_write() {
        let me = User { user: 1000, group: 100 };
        let judge = |mode, owner, group| Distrust::judge(mode, owner, group, me);
        for (mode, owner, group) in
            [(0o644, 1000, 7), (0o644, 0, 0), (0o664, 1000, 100), (0o664, 0, 100), (0o755, 0, 7)]
        {
            assert_eq!(judge(mode, owner, group), None, "{mode:o} {owner} {group}");
        }
        let owner = Some(Distrust::Owner { owner: 1001, user: 1000 });
        assert_eq!(judge(0o644, 1001, 100), owner);
        assert_eq!(judge(0o666, 1000, 100), Some(Distrust::Others { mode: 0o666 }));
        assert_eq!(judge(0o660, 0, 0), Some(Distrust::Group { mode: 0o660, group: 0 }));
    }
}
