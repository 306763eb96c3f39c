package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// account is who runs PostgreSQL. The zero value is ourselves.
type account struct {
	name string // "" for ourselves
	uid  uint32
	gid  uint32
}

// other reports whether this is somebody else than ourselves.
func (a account) other() bool { return a.name != "" }

// serverAccount returns ourselves, or an unprivileged account when we are root,
// which PostgreSQL refuses.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	var errs []error
	for _, name := range []string{"postgres", "_postgres", "nobody"} {
		acc, err := lookupAccount(name)
		if err == nil {
			return acc, nil
		}
		errs = append(errs, err)
	}
	return account{}, fmt.Errorf("PostgreSQL does not run as root, and no other account is at hand: %w", errors.Join(errs...))
}

func lookupAccount(name string) (account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("account %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("account %s: %w", name, err)
	}
	if uid == 0 {
		return account{}, fmt.Errorf("account %s is root", name)
	}
	return account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
}

// own hands path over to the account.
func (a account) own(path string) error {
	if !a.other() {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// topMode is the mode of the directory above the data: another account has to
// pass through it.
func (a account) topMode() os.FileMode {
	if a.other() {
		return 0o711
	}
	return 0o700
}
