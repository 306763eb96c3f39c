//go:build unix && testall

package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestReadme runs README.md: it starts the shop with the page's settings, sends the page's
// request twice, and once with another item.
func TestReadme(t *testing.T) {
	t.Parallel()
	testenv.Program(t, "curl")
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	sink, err := smtpsink.Start(smtpsink.Options{TLS: smtpsink.NoTLS})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close() })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	addr := "127.0.0.1:" + strconv.Itoa(testenv.FreePort(t))
	page := strings.NewReplacer("postgres://127.0.0.1/shop", "'"+testenv.Database(t)+"'", "127.0.0.1:1025", sink.Addr(),
		"127.0.0.1:8080", addr, "go run ./examples/orders", "LISTEN="+addr+" "+envSelf+"=1 exec '"+self+"'").Replace(string(text))
	blocks := make(map[string][]string) // by language; commands have none
	for _, m := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)\n```$").FindAllStringSubmatch(page, -1) {
		blocks[m[1]] = append(blocks[m[1]], m[2])
	}
	commands, shown := blocks[""], blocks["text"]
	if len(commands) != 2 || len(shown) != 2 {
		t.Fatalf("README.md has %d blocks of commands, want two, and %d of text, want a drawing and the answer", len(commands), len(shown))
	}
	answer := shown[1]
	end := startShop(t, commands[0])
	request := commands[1]
	for i, c := range []struct{ request, status, header, body string }{
		{request, "201", "", answer},
		{request, "201", "Idempotency-Replayed: true", answer},
		{strings.Replace(request, "lamp", "chair", 1), "422", "", ""},
	} {
		out, err := exec.CommandContext(t.Context(), "bash", "-c", c.request).Output()
		if s := string(out); err != nil || !strings.HasPrefix(s, "HTTP/1.1 "+c.status) || !strings.Contains(s, c.header) || !strings.Contains(s, c.body) ||
			strings.Contains(s, "Idempotency-Replayed") != (i == 1) {
			t.Errorf("%s prints %v\n%s", c.request, err, s)
		}
	}
	if all, err := sink.Wait(t.Context(), 1); err != nil || len(all) != 1 {
		t.Errorf("%d mails, %v", len(all), err)
	}
	end()
}

// startShop runs the block that starts the shop, and waits until the shop listens.
func startShop(t *testing.T, block string) (end func()) {
	t.Helper()
	var says bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "bash", "-c", block)
	cmd.Stderr = &says
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "the shop is at http://") {
		_ = cmd.Wait() // it has ended
		t.Fatalf("%s: %q, %v\n%s", block, line, err, &says)
	}
	return func() {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the shop ends with %v\n%s", err, &says)
		}
	}
}
