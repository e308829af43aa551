package drivers

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestMatrix runs each row with each driver.
func TestMatrix(t *testing.T) {
	testbin.RequireRoot(t, "drivers that mount")
	emptyTmp(t, testbin.Root(), filepath.Dir(testbin.Build(t, "host/cmd/pannier")), testbin.CacheDir(t))
	rows := rows()
	columns := all()
	results := make([][]result, len(columns))
	t.Run("drivers", func(t *testing.T) {
		for n, d := range columns {
			results[n] = make([]result, len(rows))
			for i := range rows {
				results[n][i].failed = true // until it has run
			}
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, d)
				for i, row := range rows {
					results[n][i] = r.run(t, row)
				}
			})
		}
	})
	table := table(columns, rows, results)
	cells, failed := count(results)
	if *full {
		fmt.Println(table)
		fmt.Printf("drivers: %d cells, %d fail\n", cells, failed)
	}
	if failed == 0 { // and -run has left none out
		compare(t, table)
	}
}

// emptyTmp mounts an empty /tmp in the tests' own mount namespace, because the driver of CSI 1.0 keeps its volumes
// there. Directories to keep are seen as before.
func emptyTmp(t *testing.T, keep ...string) {
	t.Helper()
	var kept []*os.File
	for _, dir := range keep {
		if strings.HasPrefix(dir, "/tmp/") {
			kept = append(kept, check.Must(os.Open(dir))(t))
		}
	}
	check.NoError(t, unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777"))
	for _, dir := range kept {
		check.NoError(t, os.MkdirAll(dir.Name(), 0o755))
		check.NoError(t, unix.Mount(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), dir.Name(), "", unix.MS_BIND, ""))
		check.NoError(t, dir.Close())
	}
}

// rows are those of this run.
func rows() []row {
	return slices.DeleteFunc(append(operations(), faults()...), func(r row) bool { return r.slow && !*full })
}

func table(columns []driver, rows []row, results [][]result) string {
	var b strings.Builder
	b.WriteString("\n| |")
	for _, d := range columns {
		b.WriteString(" " + d.name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for i, row := range rows {
		b.WriteString("| " + row.name + " |")
		for n := range columns {
			b.WriteString(" " + results[n][i].String() + " |")
		}
		b.WriteString("\n")
	}
	return b.String() + "\n"
}

// count the cells, and those that failed or did not run.
func count(results [][]result) (cells, failed int) {
	for _, column := range results {
		cells += len(column)
		for _, r := range column {
			if r.failed {
				failed++
			}
		}
	}
	return cells, failed
}

// compare checks or, with -update, writes the table in docs/drivers.md. Without -full, some of its rows are compared.
func compare(t *testing.T, want string) {
	t.Helper()
	path := filepath.Join(testbin.Root(), "docs/drivers.md")
	const begin, end = "<!-- matrix -->\n", "<!-- end of matrix -->\n"
	before, rest, found := strings.Cut(string(check.Must(os.ReadFile(path))(t)), begin)
	have, after, ended := strings.Cut(rest, end)
	switch {
	case !found || !ended:
		t.Errorf("%s has no place for the matrix", path)
	case have == want || !*full && contains(have, want):
	case *full && *update:
		check.NoError(t, os.WriteFile(path, []byte(before+begin+want+end+after), 0o644))
	default:
		t.Errorf("%s does not show the matrix as it is: run make drivers", path)
	}
}

// contains says whether each line of part is one of whole.
func contains(whole, part string) bool {
	return !slices.ContainsFunc(strings.Split(part, "\n"), func(line string) bool {
		return !slices.Contains(strings.Split(whole, "\n"), line)
	})
}
