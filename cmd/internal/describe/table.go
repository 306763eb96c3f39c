package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// The table of all types of destinations, in overviewPage, has a row per page in pagesFolder, between two lines.
const (
	overviewPage = "docs/destinations.md"
	pagesFolder  = "docs/destinations"
	tableStart   = `<!-- destinations: from their pages, by "go generate ./cmd/notifyd" -->` + "\n"
	tableEnd     = "<!-- end of destinations -->\n"
)

// summaryHeader begins the summary of a destination, a table with one row.
const summaryHeader = "| Delivered when | Stable id | Order | Copies are dropped by |\n|---|---|---|---|\n"

var summaryRegexp = regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(summaryHeader) + `(\| .* \|)\n$`)

// overview returns the content of overviewPage, with its table written anew. It returns an error for a page without a summary.
func overview(root fs.FS) ([]byte, error) {
	pages, err := fs.Glob(root, pagesFolder+"/*.md")
	if err != nil {
		return nil, err
	}

	var table strings.Builder
	table.WriteString("\n" + strings.Replace(strings.Replace(summaryHeader, "|", "| Type |", 1), "\n|", "\n|---|", 1))
	for _, page := range pages {
		text, err := fs.ReadFile(root, page)
		if err != nil {
			return nil, err
		}
		summary := summaryRegexp.FindSubmatch(text)
		if summary == nil {
			return nil, fmt.Errorf("%s: no summary: add a table that begins with %q", page, summaryHeader)
		}

		kind := strings.TrimSuffix(path.Base(page), ".md")
		fmt.Fprintf(&table, "| [`%s`](destinations/%s.md) %s\n", kind, kind, summary[1])
	}
	table.WriteString("\n")

	text, err := fs.ReadFile(root, overviewPage)
	if err != nil {
		return nil, err
	}
	before, rest, begins := bytes.Cut(text, []byte(tableStart))
	_, after, ends := bytes.Cut(rest, []byte(tableEnd))
	if !begins || !ends {
		return nil, fmt.Errorf("%s: no place for the table: add the lines %s and %s", overviewPage, tableStart, tableEnd)
	}
	return fmt.Appendf(nil, "%s%s%s%s%s", before, tableStart, table.String(), tableEnd, after), nil
}
