package dist

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// link is an inline link of Markdown: its text and its target.
var link = regexp.MustCompile(`(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)`)

// relinked returns, by place, the pages whose links would break in the archive. Links to moved files are adjusted; links to files
// that the archive lacks become plain text.
func relinked(root string, files map[string]string) (map[string]string, error) {
	places := make(map[string]string) // by path below root
	for place, from := range files {
		rel, err := filepath.Rel(root, from)
		if err != nil {
			return nil, err
		}
		places[filepath.ToSlash(rel)] = place
	}

	pages := make(map[string]string)
	for from, place := range places {
		if !strings.HasSuffix(place, ".md") {
			continue
		}
		text, err := os.ReadFile(files[place])
		if err != nil {
			return nil, err
		}
		page := relink(string(text), func(target string) string {
			found := placeOf(places, path.Join(path.Dir(from), target))
			if found == "" {
				return ""
			}
			rel, err := filepath.Rel(filepath.Dir(filepath.FromSlash(place)), filepath.FromSlash(found))
			if err != nil {
				return ""
			}
			return filepath.ToSlash(rel)
		})
		if page != string(text) {
			pages[place] = page
		}
	}

	return pages, nil
}

// placeOf returns the place of a file or a directory of the repository; "" if the archive lacks it.
func placeOf(places map[string]string, name string) string {
	if place, ok := places[name]; ok {
		return place
	}
	for _, other := range slices.Sorted(maps.Keys(places)) {
		if inside, ok := strings.CutPrefix(other, name+"/"); ok {
			return strings.TrimSuffix(places[other], "/"+inside)
		}
	}

	return ""
}

// relink gives the links of a page to other files the targets that to returns. Without a target the text remains. Code is left
// as it is.
func relink(page string, to func(target string) string) string {
	const fence = "```"
	parts := strings.Split(page, fence)
	for i := 0; i < len(parts); i += 2 { // between them is code
		parts[i] = link.ReplaceAllStringFunc(parts[i], func(whole string) string {
			m := link.FindStringSubmatch(whole)
			image := m[1]
			text := m[2]
			target := m[3]
			anchor := m[4]

			if strings.Contains(target, ":") { // a URL
				return whole
			}

			place := to(target)
			if place == "" {
				return text
			}
			return fmt.Sprintf("%s[%s](%s%s)", image, text, place, anchor)
		})
	}

	return strings.Join(parts, fence)
}
