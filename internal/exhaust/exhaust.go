// Package exhaust recognizes failures caused by exhausted resources of this machine.
package exhaust

import (
	"errors"
	"net"
	"strings"
	"syscall"
)

// causes returns the error numbers with their cures. ENFILE precedes EMFILE, because its text contains that of EMFILE.
func causes() []cause {
	return []cause{
		{syscall.ENFILE, "the machine has no files left: raise fs.file-max"},
		{syscall.EMFILE, "the process has no files left: raise its limit (ulimit -n, LimitNOFILE of systemd), or lower concurrency"},
		{syscall.EADDRNOTAVAIL, "the machine has no local port or address left: widen net.ipv4.ip_local_port_range, or lower concurrency"},
		{syscall.ENOBUFS, "the machine has no memory left for sockets: raise net.ipv4.tcp_mem, or lower concurrency"},
		{syscall.ENOMEM, "the machine has no memory left: give it more, or lower concurrency"},
	}
}

type cause struct {
	errno syscall.Errno
	cure  string
}

// Cause returns the error number in err's chain if this machine has run out of files, ports or memory, and nil
// otherwise. It holds no secret.
func Cause(err error) error {
	if c := find(err); c != nil {
		return c.errno
	}
	return nil
}

// Cure returns what an operator can do if this machine has run out of files, ports or memory, and "" otherwise.
func Cure(err error) string {
	if c := find(err); c != nil {
		return c.cure
	}
	return ""
}

func find(err error) *cause {
	if err == nil {
		return nil
	}

	for _, c := range causes() {
		if errors.Is(err, c.errno) {
			return &c
		}
	}

	// The resolver returns the text of a socket's error, not the error.
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		for _, c := range causes() {
			if strings.Contains(dns.Err, c.errno.Error()) {
				return &c
			}
		}
	}

	return nil
}
