package exhaust_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/internal/exhaust"
)

func TestCause(t *testing.T) {
	t.Parallel()
	dial := func(errno syscall.Errno) error {
		return fmt.Errorf("post: %w", &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", errno)})
	}
	lookup := func(text string) error { return &net.OpError{Op: "dial", Err: &net.DNSError{Err: text}} }
	for _, c := range []struct {
		err  error
		want error
		cure string
	}{
		{nil, nil, ""},
		{errors.New("too many open files"), nil, ""}, // a server has said it
		{dial(syscall.ECONNREFUSED), nil, ""},
		{dial(syscall.EMFILE), syscall.EMFILE, "ulimit -n"},
		{dial(syscall.ENFILE), syscall.ENFILE, "fs.file-max"},
		{dial(syscall.EADDRNOTAVAIL), syscall.EADDRNOTAVAIL, "ip_local_port_range"},
		{dial(syscall.ENOBUFS), syscall.ENOBUFS, "tcp_mem"},
		{&os.PathError{Op: "open", Err: syscall.ENOMEM}, syscall.ENOMEM, "memory"},
		{lookup("dial udp 10.0.0.1:53: socket: too many open files"), syscall.EMFILE, "ulimit -n"},
		{lookup("dial udp 10.0.0.1:53: socket: too many open files in system"), syscall.ENFILE, "fs.file-max"},
		{lookup("no such host"), nil, ""},
	} {
		if got, cure := exhaust.Cause(c.err), exhaust.Cure(c.err); !errors.Is(got, c.want) || (got == nil) != (c.want == nil) || !strings.Contains(cure, c.cure) || (cure == "") != (c.cure == "") {
			t.Errorf("%v: %v, %q", c.err, got, cure)
		}
	}
}
