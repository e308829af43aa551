// Command house prints the rooms of the table in docs/architecture.md with their hand-written product lines, their
// budgets and their arrows: the rooms that they import. It fails when a room is over its budget, when a file is in no
// room, and when a room has no file. An arrow to a room that stands above in the table goes up, and is printed as such.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	page   = "docs/architecture.md"
	module = "github.com/pannier/pannier/"
)

// room is one row of the table.
type room struct {
	path          string
	lines, budget int
	arrows        []int // the rooms that it imports, by their places in the table
}

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "house:", err)
		os.Exit(1)
	}
}

func run(out io.Writer) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	rooms := parse(string(text))
	listed, err := exec.Command("git", "ls-files", "*.go").Output()
	if err != nil {
		return fmt.Errorf("list the files: %w", err)
	}
	for _, path := range strings.Fields(string(listed)) {
		if err := measure(rooms, path, os.ReadFile); err != nil {
			return err
		}
	}
	return report(out, rooms)
}

var row = regexp.MustCompile("(?m)^\\| `([a-z0-9/-]+)` \\| ([0-9,]+) \\|")

// parse returns the rooms of a page, in the order of its table.
func parse(text string) []*room {
	var rooms []*room
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		budget, _ := strconv.Atoi(strings.ReplaceAll(m[2], ",", ""))
		rooms = append(rooms, &room{path: m[1], budget: budget})
	}
	return rooms
}

var (
	// noProduct are tests, benchmarks, tools and examples.
	noProduct = regexp.MustCompile(`_test\.go$|^test/|^tools/|^host/internal/bench/|(^|/)_?examples?/`)
	generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT`)
)

// measure adds a file's lines and arrows to its room.
func measure(rooms []*room, path string, read func(string) ([]byte, error)) error {
	if noProduct.MatchString(path) {
		return nil
	}
	text, err := read(path)
	if os.IsNotExist(err) || generated.Match(text) { // removed, and not committed yet
		return nil
	} else if err != nil {
		return err
	}
	own := find(rooms, filepath.Dir(path))
	if own < 0 {
		return fmt.Errorf("%s is in no room of %s", path, page)
	}
	rooms[own].lines += bytes.Count(text, []byte("\n"))
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ImportsOnly)
	if err != nil {
		return err
	}
	for _, spec := range file.Imports {
		imported, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
		if other := find(rooms, imported); ours && other >= 0 && other != own && !slices.Contains(rooms[own].arrows, other) {
			rooms[own].arrows = append(rooms[own].arrows, other)
		}
	}
	return nil
}

// find returns the place of the innermost room that has a folder; -1 if none has.
func find(rooms []*room, folder string) int {
	found := -1
	for n, r := range rooms {
		if (folder == r.path || strings.HasPrefix(folder, r.path+"/")) && (found < 0 || len(r.path) > len(rooms[found].path)) {
			found = n
		}
	}
	return found
}

func report(out io.Writer, rooms []*room) error {
	var lines, budget, arrows int
	var up, wrong []string
	for n, r := range rooms {
		lines, budget, arrows = lines+r.lines, budget+r.budget, arrows+len(r.arrows)
		slices.Sort(r.arrows)
		var names []string
		for _, other := range r.arrows {
			names = append(names, strings.TrimPrefix(rooms[other].path, "host/internal/"))
			if other < n {
				up = append(up, r.path+" → "+rooms[other].path)
			}
		}
		fmt.Fprintf(out, "%-25s %6d of %6d  → %s\n", r.path, r.lines, r.budget, strings.Join(names, ", "))
		switch {
		case r.lines == 0:
			wrong = append(wrong, r.path+" has no file")
		case r.lines > r.budget:
			wrong = append(wrong, fmt.Sprintf("%s has %d lines, %d more than its budget: delete as many, or decide for more in docs/adr",
				r.path, r.lines, r.lines-r.budget))
		}
	}
	fmt.Fprintf(out, "%d rooms, %d of %d lines, %d arrows, %d of them up\n", len(rooms), lines, budget, arrows, len(up))
	for _, arrow := range up {
		fmt.Fprintln(out, "up:", arrow)
	}
	if len(rooms) == 0 {
		wrong = append(wrong, page+" has no table of rooms")
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "\n"))
	}
	return nil
}
