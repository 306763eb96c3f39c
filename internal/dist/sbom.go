package dist

import (
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// bom is a software bill of materials in the JSON form of CycloneDX 1.6, with the
// fields that the build information of a Go program can fill. It has no serial
// number, which would have to differ from build to build.
type bom struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     bomMetadata  `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type bomMetadata struct {
	Timestamp  string     `json:"timestamp"`
	Component  component  `json:"component"`
	Properties []property `json:"properties"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	Scope      string     `json:"scope,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	URL        string     `json:"purl,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// writeBOM lists the parts that were linked into a program: the modules, as
// recorded by the linker, and the standard library. Tools and test dependencies,
// which are also in go.mod, are absent. The result depends on the commit and on
// the program alone.
func writeBOM(path, program string, c commit) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}

	sum, err := checksum(program)
	if err != nil {
		return err
	}

	// Without a package URL: the module path is a placeholder, and readers of bills would look
	// for the module of another project.
	main := component{
		Type:    "application",
		Ref:     info.Main.Path + "@" + c.version,
		Name:    info.Main.Path,
		Version: c.version,
		Hashes:  []hash{{"SHA-256", sum}},
	}
	list := []component{module("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		list = append(list, library(m))
	}
	slices.SortFunc(list, func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })

	all := dependency{Ref: main.Ref}
	dependencies := []dependency{}
	for _, l := range list {
		all.DependsOn = append(all.DependsOn, l.Ref)
		dependencies = append(dependencies, dependency{Ref: l.Ref})
	}

	text, err := json.MarshalIndent(bom{
		Format:  "CycloneDX",
		Spec:    "1.6",
		Version: 1,
		Metadata: bomMetadata{
			Timestamp:  c.time.Format(time.RFC3339),
			Component:  main,
			Properties: append(settings(info), property{"notifyd:commit", c.hash}),
		},
		Components: list,
		// The build information does not show which module uses which.
		Dependencies: append([]dependency{all}, dependencies...),
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644) //nolint:gosec // the file is public
}

// library is the component of a module, or of its replacement in go.mod. A
// directory as the replacement has neither a version nor an address.
func library(m *debug.Module) component {
	if m.Replace != nil && m.Replace.Version != "" {
		m = m.Replace
	}
	l := module(m.Path, m.Version)
	l.Scope = "required"
	if m.Sum != "" { // as go.sum has it; it is a hash over hashes and not that of a file
		l.Properties = []property{{"notifyd:go.sum", m.Sum}}
	}
	return l
}

func module(path, version string) component {
	var escaped []string
	for part := range strings.SplitSeq(strings.ToLower(path), "/") { // as the type golang demands
		escaped = append(escaped, url.PathEscape(part))
	}
	// PathEscape leaves the plus of "+incompatible", which some readers take for a space.
	at := strings.ReplaceAll(url.PathEscape(version), "+", "%2B")
	ref := "pkg:golang/" + strings.Join(escaped, "/") + "@" + at
	return component{Type: "library", Ref: ref, Name: path, Version: version, URL: ref}
}

// settings are the build settings that determine the program.
func settings(info *debug.BuildInfo) (list []property) {
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS", "GOARCH", "GOAMD64", "GOARM64", "CGO_ENABLED", "GOFIPS140":
			list = append(list, property{"notifyd:" + s.Key, s.Value})
		}
	}
	return list
}
