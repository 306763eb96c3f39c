package rabbitserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// errNotFound names the cure.
var errNotFound = fmt.Errorf("RabbitMQ is %w: make setup installs it, or apt-get install rabbitmq-server", privateserver.ErrNotFound)

// programs are the three programs of a node.
type programs struct{ server, ctl, epmd string }

// find looks for the programs of Debian and of Homebrew, but not in /usr/sbin, where
// Debian has a wrapper for the system's node only.
func find() (programs, error) {
	folders := []string{"/usr/lib/rabbitmq/bin", "/opt/homebrew/opt/rabbitmq/sbin", "/usr/local/opt/rabbitmq/sbin"}
	if more, err := filepath.Glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin"); err == nil {
		folders = append(folders, more...)
	}

	epmd, err := findEpmd()
	if err != nil {
		return programs{}, errNotFound
	}

	for _, folder := range folders {
		p := programs{server: filepath.Join(folder, "rabbitmq-server"), ctl: filepath.Join(folder, "rabbitmqctl"), epmd: epmd}
		if isFile(p.server) && isFile(p.ctl) {
			return p, nil
		}
	}

	return programs{}, errNotFound
}

func findEpmd() (string, error) {
	if path, err := exec.LookPath("epmd"); err == nil {
		return path, nil
	}

	found, err := filepath.Glob("/usr/lib/erlang/erts-*/bin/epmd")
	if err != nil || len(found) == 0 {
		return "", errNotFound
	}
	return found[len(found)-1], nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
