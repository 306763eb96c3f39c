package email

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// rawServer sends the given answers line by line, and then the last one for ever:
// bytes that no SMTP library would send.
func rawServer(t *testing.T, answers ...string) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(conn)
			for i := 0; err == nil; i++ {
				if _, err = io.WriteString(conn, answers[min(i, len(answers)-1)]); err == nil {
					_, err = r.ReadString('\n')
				}
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal(l.Addr())
	}
	return addr.Port
}

func TestGarbageNeitherPanicsNorHangs(t *testing.T) {
	t.Parallel()
	polite := []string{"220 hi\r\n", "250 hello\r\n", "250 ok\r\n", "250 ok\r\n", "354 go\r\n"}
	for _, garbage := range []string{
		"\r\n", "4\r\n", "5\r\n", "45\r\n", "450\r\n", "999 x\r\n", "250", "-1 x\r\n", "\x00\xff\r\n", "450-a\r\n550 b\r\n",
		"550 \x1b[2J\r\n", "200 ok\r\n", "4xx\r\n",
	} {
		for i := range len(polite) {
			t.Run(fmt.Sprintf("%q at %d", garbage, i), func(t *testing.T) {
				t.Parallel()
				port := rawServer(t, append(polite[:i:i], garbage)...)
				cfg := config(testenv.Mail(t, smtpsink.Options{}))
				cfg.Port, cfg.ConnectTimeout, cfg.SendTimeout = port, 150*time.Millisecond, 150*time.Millisecond
				err := deliverytest.Open(t, New, cfg).Deliver(testenv.Within(t, patience), event(ada))
				if err == nil || strings.ContainsFunc(err.Error(), isControl) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

func TestEndlessRepliesAreCutOff(t *testing.T) {
	t.Parallel()
	for name, greeting := range map[string]string{
		"lines": strings.Repeat("220-hello\r\n", 1<<18), "line": "220 " + strings.Repeat("x", 3<<20) + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(testenv.Mail(t, smtpsink.Options{}))
			cfg.Port = rawServer(t, greeting)
			err := deliverytest.Open(t, New, cfg).Deliver(testenv.Within(t, patience), event(ada))
			if deliverytest.Class(err) != "unavailable" || !strings.Contains(err.Error(), "more than 1048576 bytes") {
				t.Errorf("got %v", err)
			}
		})
	}
}
