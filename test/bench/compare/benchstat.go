package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/pannier/pannier/test/bench/table"
)

// fewest is the number of samples of a row with which a difference can be more than chance to benchstat.
const fewest = 4

// results are rows by their names in Go's format of benchmarks. What begins with the section's title.
type results map[string]table.Row

// load reads files of the same build. The samples of a row are those of all files.
func load(files []string) (results, error) {
	all := results{}
	for _, file := range files {
		r, err := table.Read(file)
		if err != nil {
			return nil, err
		}
		for _, s := range r.Sections {
			for _, row := range s.Rows {
				name := word(s.Title + ": " + row.Name())
				if len(row.Samples) == 0 {
					row.Samples = []float64{row.Value}
				}
				row.What = s.Title + ": " + row.Name()
				row.Samples = append(slices.Clone(all[name].Samples), row.Samples...)
				all[name] = row
			}
		}
	}
	return all, nil
}

func (r results) names() []string { return slices.Sorted(maps.Keys(r)) }

// format writes all samples in Go's format of benchmarks.
func (r results) format() []byte {
	var text bytes.Buffer
	for _, name := range r.names() {
		row := r[name]
		unit := row.Unit
		if unit == "" {
			unit = "1"
		}
		for _, v := range row.Samples {
			fmt.Fprintf(&text, "Benchmark%s 1 %g %s\n", name, v, unit)
		}
	}
	return text.Bytes()
}

// word makes one word of a text.
func word(text string) string { return "_" + strings.Join(strings.Fields(text), "_") }

// change is benchstat's verdict on a row.
type change struct {
	old, now float64 // medians
	by       string  // such as +12.34%; "~": no difference is seen
	chance   string  // the probability that the difference is chance, and the number of samples
}

// judge runs benchstat on two files.
func judge(benchstat, before, after string) (map[string]change, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(benchstat, "-format", "csv", before, after)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd, err, stderr.Bytes())
	}
	return parse(out)
}

// parse reads benchstat's tables, one for each unit. Lines with a verdict have a name, the old median and its
// confidence, the new ones, the difference and the chance.
func parse(out []byte) (map[string]change, error) {
	r := csv.NewReader(bytes.NewReader(out))
	r.FieldsPerRecord = -1
	lines, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read what benchstat says: %w", err)
	}
	all := map[string]change{}
	for _, line := range lines {
		if len(line) < 7 || !strings.HasPrefix(line[0], "_") {
			continue
		}
		c := change{by: line[5], chance: line[6]}
		var errs [2]error
		c.old, errs[0] = strconv.ParseFloat(line[1], 64)
		c.now, errs[1] = strconv.ParseFloat(line[3], 64)
		if errs[0] == nil && errs[1] == nil {
			all[line[0]] = c
		}
	}
	return all, nil
}
