package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// parsed reads a YAML file of this repository.
func parsed[T any](t *testing.T, path string) (text string, v T) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", path))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return string(data), v
}

type workflow struct {
	Permissions map[string]string `yaml:"permissions"`
	Jobs        map[string]struct {
		Permissions map[string]string `yaml:"permissions"`
		Needs       any               `yaml:"needs"` // a name, or several
		Timeout     int               `yaml:"timeout-minutes"`
		Uses        string            `yaml:"uses"`
		Container   struct {
			Image string `yaml:"image"`
		} `yaml:"container"`
		Steps []struct {
			Uses string         `yaml:"uses"`
			With map[string]any `yaml:"with"`
			Run  string         `yaml:"run"`
		} `yaml:"steps"`
	} `yaml:"jobs"`
}

// workflows are those of .github, by path.
func workflows(t *testing.T) map[string]workflow {
	t.Helper()
	found, err := filepath.Glob("../.github/workflows/*.yml")
	if err != nil || len(found) < 2 {
		t.Fatalf("%q, %v", found, err)
	}
	all := make(map[string]workflow)
	for _, path := range found {
		path = strings.TrimPrefix(path, "../")
		_, all[path] = parsed[workflow](t, path)
	}
	return all
}

// TestWorkflowsAreMinimal: a job may read the repository, and those that sign and publish
// may write what they are for and check nothing out; foreign code is pinned to a commit.
func TestWorkflowsAreMinimal(t *testing.T) {
	t.Parallel()
	pinned := regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40}$`)
	mayWrite := map[string][]string{"publish": {"contents"}, "sign": {"id-token", "attestations"}}
	for path, w := range workflows(t) {
		if w.Permissions == nil {
			t.Errorf("%s leaves its permissions to the settings of the repository", path)
		}
		for name, job := range w.Jobs {
			if job.Uses != "" && !strings.HasPrefix(job.Uses, "./") {
				t.Errorf("%s, %s uses %s", path, name, job.Uses)
			}
			if job.Uses == "" && job.Timeout == 0 {
				t.Errorf("%s, %s may run for six hours", path, name)
			}
			writes := false
			for _, permissions := range []map[string]string{w.Permissions, job.Permissions} {
				for what, level := range permissions {
					writes = writes || level != "read"
					if level != "read" && !slices.Contains(mayWrite[name], what) {
						t.Errorf("%s, %s: %s: %s", path, name, what, level)
					}
				}
			}
			for _, step := range job.Steps {
				if step.Uses != "" && !pinned.MatchString(step.Uses) {
					t.Errorf("%s, %s: %s is not pinned to a commit", path, name, step.Uses)
				}
				isCheckout := strings.HasPrefix(step.Uses, "actions/checkout@")
				if isCheckout && (writes || step.With["persist-credentials"] != false) {
					t.Errorf("%s, %s leaves a token beside the code of the repository", path, name)
				}
				if strings.Contains(step.Run, "${{") {
					t.Errorf("%s, %s puts an expression into a shell: %s", path, name, step.Run)
				}
			}
		}
	}
}

// TestWorkflowsRun: the commands of the steps exist, and use the Go version of go.mod.
func TestWorkflowsRun(t *testing.T) {
	t.Parallel()
	module, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(module))[1]
	builder := images(t)[0]
	called := make(map[string]bool)
	for path, w := range workflows(t) {
		for name, job := range w.Jobs {
			if image := job.Container.Image; image != "" && (image != builder || !strings.HasPrefix(image, "golang:"+version+".")) {
				t.Errorf("%s, %s runs in %s, go.mod wants %s, deploy/Dockerfile has %s", path, name, image, version, builder)
			}
			for _, step := range job.Steps {
				if strings.HasPrefix(step.Uses, "actions/setup-go@") && step.With["go-version"] != version {
					t.Errorf("%s, %s takes Go %v, go.mod wants %s", path, name, step.With["go-version"], version)
				}
				for _, m := range regexp.MustCompile(`(?:^|[ ;&])(?:make ([a-z-]+)|(?:\./)?((?:scripts|\.ci)/[\w-]+))`).FindAllStringSubmatch(step.Run, -1) {
					called[m[1]+m[2]] = true
					if m[1] != "" {
						makes(t, m[1])
					} else if info, err := os.Stat("../" + m[2]); err != nil || info.Mode()&0o100 == 0 {
						t.Errorf("%s, %s calls %s: %v", path, name, m[2], err)
					}
				}
			}
		}
	}
	for _, must := range []string{".ci/run", "test-matrix", "dist", "vuln", "scripts/release-notes"} {
		if !called[must] {
			t.Errorf("no workflow calls %s; found: %v", must, called)
		}
	}
}

// TestImagesHaveDigests: the image is made of images that nobody can replace.
func TestImagesHaveDigests(t *testing.T) {
	t.Parallel()
	for _, image := range images(t) {
		if !regexp.MustCompile(`^[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}$`).MatchString(image) {
			t.Errorf("deploy/Dockerfile begins with %q, which has no tag or no digest", image)
		}
	}
}

// images are those that deploy/Dockerfile begins with, the one with Go first.
func images(t *testing.T) (found []string) {
	t.Helper()
	file, err := os.ReadFile("../deploy/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^FROM (?:--\S+ )?(\S+)`).FindAllStringSubmatch(string(file), -1) {
		found = append(found, m[1])
	}
	if len(found) != 2 {
		t.Fatalf("deploy/Dockerfile begins with %q", found)
	}
	return found
}

// makes checks that make has a target.
func makes(t *testing.T, target string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "make", "-n", "-C", "..", target).CombinedOutput(); err != nil {
		t.Errorf("make %s: %v\n%s", target, err, out)
	}
}

// TestMatrixIsWhole compares the majors of the workflow with those of the script.
func TestMatrixIsWhole(t *testing.T) {
	t.Parallel()
	text, _ := parsed[workflow](t, ".github/workflows/ci.yml")
	script, err := os.ReadFile("postgres/fetch")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^ *major: \[(.*)\]$`).FindStringSubmatch(text)
	var majors []string
	for _, m := range regexp.MustCompile(`\[(\d+)\]=\d`).FindAllStringSubmatch(string(script), -1) {
		majors = append(majors, m[1])
	}
	if list == nil || len(majors) == 0 || list[1] != strings.Join(majors, ", ") {
		t.Errorf("the workflow has %q, the script %q", list, majors)
	}
}
