package rabbitserver

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// account is who runs the node. The zero value is ourselves.
type account struct {
	name     string // "" for ourselves
	uid, gid uint32
}

// serverAccount returns ourselves, or the account of Debian's package when we
// are root.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	u, err := user.Lookup("rabbitmq")
	if err != nil {
		return account{}, fmt.Errorf("RabbitMQ is not to run as root, and has no account: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("account %s: %w", u.Username, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("account %s: %w", u.Username, err)
	}
	return account{name: u.Username, uid: uint32(uid), gid: uint32(gid)}, nil
}

// own hands path over to the account.
func (a account) own(path string) error {
	if a.name == "" {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}
