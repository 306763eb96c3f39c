package credential

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script returns the words that run a shell script.
func script(text string) []string { return []string{"sh", "-c", text} }

// TestPrograms runs programs that print what they should, and programs that do not.
func TestPrograms(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		argv []string
		want string
		err  string // part of the error
	}{
		"a line":            {script("echo secret"), "secret", ""},
		"no line end":       {script("printf secret"), "secret", ""},
		"CRLF":              {script(`printf 'secret\r\n'`), "secret", ""},
		"blanks within":     {script("echo ' a b '"), " a b ", ""},
		"a long token":      {script("head -c 60000 /dev/zero | tr '\\0' x"), strings.Repeat("x", 60000), ""},
		"stderr as well":    {script("echo careful >&2; echo secret"), "secret", ""},
		"a failure":         {script("echo 'no login' >&2; exit 3"), "", "run sh: exit status 3: no login"},
		"a failing secret":  {script("echo hunter2; echo 'bad hunter2' >&2; exit 3"), "", "run sh: exit status 3"},
		"nothing":           {script("true"), "", "it printed nothing: must be one line"},
		"blank":             {script("echo '  '"), "", "it printed nothing"},
		"several lines":     {script("echo secret; echo more"), "", "it printed several lines"},
		"too much":          {script("head -c 70000 /dev/zero | tr '\\0' x"), "", "it printed more than 65536 bytes"},
		"no text":           {script(`printf '\377\376'`), "", "it printed no text"},
		"a missing program": {[]string{"/nowhere/token"}, "", "run /nowhere/token: "},
		"control on stderr": {script(`printf 'a\033[31mb\nc' >&2; exit 1`), "", "exit status 1: a [31mb"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := NewCommand(c.argv, 0).Get(t.Context())
			if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %.40q, %v, want %.40q, %s", got, err, c.want, c.err)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.ContainsAny(err.Error(), "\n\x1b")) {
				t.Errorf("the error has the secret, or controls a terminal: %q", err)
			}
		})
	}
}

// TestHangs: a program that does not end, and its child, are killed when the caller gives up.
func TestHangs(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "alive")
	ctx, cancel := context.WithCancelCause(t.Context())
	c := NewCommand(script("sleep 1000 & echo > "+pipe+"; wait"), 0)
	done := make(chan error, 1)
	go func() {
		_, err := c.Get(ctx)
		done <- err
	}()
	for { // until the program runs
		if _, err := os.Stat(pipe); err == nil {
			break
		}
		<-time.After(time.Millisecond)
	}
	gone := errors.New("given up")
	cancel(gone)
	if err := <-done; !errors.Is(err, gone) {
		t.Errorf("got %v, want why the caller gave up", err)
	}
}

// TestLifetime: concurrent callers share a run, and the credential is used for its lifetime. A failure is not kept.
func TestLifetime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := NewCommand([]string{"token"}, time.Minute)
		runs, broken := 0, false
		c.run = func(ctx context.Context, _ []string) ([]byte, []byte, error) {
			time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
			if runs++; broken {
				return nil, nil, errors.New("broken")
			}
			return []byte(strings.Repeat("x", runs)), nil, ctx.Err()
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if got, err := c.Get(t.Context()); got != "x" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
			})
		}
		all.Wait()
		time.Sleep(58 * time.Second) //nolint:forbidigo // of a synctest bubble
		if got, err := c.Get(t.Context()); got != "x" || err != nil || runs != 1 {
			t.Errorf("within the lifetime: %q, %v, %d runs", got, err, runs)
		}
		time.Sleep(2 * time.Second) //nolint:forbidigo // of a synctest bubble
		broken = true
		if got, err := c.Get(t.Context()); err == nil {
			t.Errorf("a program that fails: %q", got)
		}
		broken = false
		if got, err := c.Get(t.Context()); got != "xxx" || err != nil {
			t.Errorf("after a failure: %q, %v", got, err)
		}
	})
}

// TestRDS: a token names the host, the user and the region, is signed for 15 minutes, and is used for ten.
func TestRDS(t *testing.T) { //nolint:paralleltest // the SDK reads the environment
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull} {
		t.Setenv(name, value)
	}
	r := NewRDS("eu-central-1")
	first, err := r.Get(t.Context(), "db.example.com:5432", "relay")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"db.example.com:5432", "Action=connect", "DBUser=relay", "X-Amz-Expires=900", "%2Feu-central-1%2Frds-db%2F"} {
		if !strings.Contains(first, part) {
			t.Errorf("the token lacks %q", part)
		}
	}
	if strings.Contains(first, "hunter2") {
		t.Error("the token has the secret key")
	}
	if again, err := r.Get(t.Context(), "db.example.com:5432", "relay"); again != first || err != nil {
		t.Errorf("it is not used again: %v", err)
	}
	if other, err := r.Get(t.Context(), "db.example.com:5432", "other"); other == first || err != nil {
		t.Errorf("another user gets the same: %v", err)
	}
}
