package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// open creates a network namespace with one virtual cable, and a socket that
// listens inside it.
func (n *Network) open(ctx context.Context) (net.Listener, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: they need root", errNoNetwork)
	}

	id := rand.Uint32() //nolint:gosec // a name
	ns := fmt.Sprintf("nfd%08x", id)
	here := fmt.Sprintf("nfdh%08x", id)
	there := fmt.Sprintf("nfdn%08x", id)

	// 198.18.0.0/15 is reserved for tests of networks.
	block := id & 0x1ffff &^ 3
	ip := func(host uint32) string {
		a := 198<<24 | 18<<16 | block + host
		return fmt.Sprintf("%d.%d.%d.%d", a>>24, a>>16&255, a>>8&255, a&255)
	}

	mac := fmt.Sprintf("02:4e:%02x:%02x:%02x:%02x", id>>24, id>>16&255, id>>8&255, id&255)

	n.remove = func(ctx context.Context) {
		_ = run(ctx, "ip netns del "+ns) // also removes the cable; the namespace may not exist yet
	}

	for _, line := range []string{
		"ip netns add " + ns,
		"ip link add " + here + " type veth peer name " + there + " address " + mac + " netns " + ns,
		"ip addr add " + ip(1) + "/30 dev " + here,
		"ip link set " + here + " up",
		"ip -n " + ns + " addr add " + ip(2) + "/30 dev " + there,
		"ip -n " + ns + " link set " + there + " up",
		// Without it the kernel would report "no route to host" for a silent peer.
		"ip neigh replace " + ip(2) + " lladdr " + mac + " dev " + here + " nud permanent",
	} {
		if err := run(ctx, line); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoNetwork, err)
		}
	}

	n.link = func(ctx context.Context, up bool) error {
		state := "down"
		if up {
			state = "up"
		}
		return run(ctx, "ip -n "+ns+" link set "+there+" "+state)
	}

	return listenIn(ctx, filepath.Join("/run/netns", ns), ip(2))
}

// listenIn opens a socket in another network namespace, where it stays.
func listenIn(ctx context.Context, namespace, ip string) (l net.Listener, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// A locked thread that is not unlocked ends with its goroutine, so no other
		// goroutine runs in this namespace.
		runtime.LockOSThread()
		var target *os.File

		target, err = os.Open(namespace)
		if err != nil {
			return
		}
		defer target.Close() //nolint:errcheck // nothing was written

		err = unix.Setns(int(target.Fd()), unix.CLONE_NEWNET)
		if err != nil {
			err = fmt.Errorf("%w: enter a network namespace: %w", errNoNetwork, err)
			return
		}

		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(ip, "0"))
	}()

	<-done
	return l, err
}

func run(ctx context.Context, line string) error {
	words := strings.Fields(line)
	out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", line, err), errors.New(string(bytes.TrimSpace(out))))
	}
	return nil
}
