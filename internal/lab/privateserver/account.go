package privateserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// Account runs a server. The zero value is the account of this process.
type Account struct {
	name     string // "" for the account of this process
	uid, gid uint32
}

// Unprivileged returns the account of this process or, if that is root, the first of the
// named accounts that exists.
func Unprivileged(names ...string) (Account, error) {
	if os.Geteuid() != 0 {
		return Account{}, nil
	}

	var errs []error
	for _, name := range names {
		a, err := lookup(name)
		if err == nil {
			return a, nil
		}
		errs = append(errs, err)
	}

	return Account{}, fmt.Errorf("no account to run a server that refuses to run as root: %w", errors.Join(errs...))
}

func lookup(name string) (Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return Account{}, err
	}

	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("account %s: %w", name, err)
	}

	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("account %s: %w", name, err)
	}

	if uid == 0 {
		return Account{}, fmt.Errorf("account %s is root", name)
	}

	return Account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
}

// Other reports whether the account differs from the account of this process.
func (a Account) Other() bool { return a.name != "" }

// UID returns the account's user id.
func (a Account) UID() int {
	if a.Other() {
		return int(a.uid)
	}
	return os.Geteuid()
}

// own changes the owner of path to the account.
func (a Account) own(path string) error {
	if !a.Other() {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// topMode is the mode of the directory above the data, which another account must be able to enter.
func (a Account) topMode() os.FileMode {
	if a.Other() {
		return 0o711
	}
	return 0o700
}
