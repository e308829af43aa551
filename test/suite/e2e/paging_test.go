package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
)

// Thousands of snapshots and volumes of a driver are listed completely, and page by page.
func TestListThousands(t *testing.T) {
	t.Parallel()
	const all = 2500
	h := testhost.New(t, testhost.LocalDriver(t))
	for i := range all {
		// What csi-local keeps of a volume and a snapshot, whose ids are a hash of the name.
		for _, item := range [][2]string{
			{"volumes", fmt.Sprintf("vol-%032x", i)}, {"snapshots", fmt.Sprintf("snap-%032x", i)},
		} {
			dir := filepath.Join(h.Path("data"), "volumes", item[0], item[1])
			check.NoError(t, os.MkdirAll(dir, 0o700))
			check.NoError(t, os.WriteFile(filepath.Join(dir, item[1]+".img"), nil, 0o600))
			check.NoError(t, os.WriteFile(filepath.Join(dir, "record.json"),
				[]byte(fmt.Sprintf(`{"id":%q,"volume_id":"vol-%032x"}`, item[1], i)), 0o600))
		}
	}
	h.Start()
	for name, list := range map[string]struct {
		command []string
		id      string
	}{
		"snapshots": {[]string{"volume", "snapshot", "list", "-driver", "local", "-o", "json"}, "snapshotId"},
		"volumes":   {[]string{"volume", "list", "-driver", "local", "-external", "-o", "json"}, "externalId"},
	} {
		read := func(more ...string) (ids []string, next string) {
			t.Helper()
			var page struct {
				Snapshots, Volumes []map[string]any
				NextToken          string
			}
			check.NoError(t, json.Unmarshal([]byte(h.Run(append(list.command, more...)...)), &page))
			for _, e := range append(page.Snapshots, page.Volumes...) {
				ids = append(ids, e[list.id].(string))
			}
			return ids, page.NextToken
		}
		whole, next := read()
		seen := map[string]bool{}
		for _, id := range whole {
			seen[id] = true
		}
		if len(seen) != all || len(whole) != all || next != "" {
			t.Errorf("%s: %d listed, %d different, of %d; then %q", name, len(whole), len(seen), all, next)
		}
		var paged []string
		for pages, token := 0, ""; pages == 0 || token != ""; pages++ {
			ids, next := read("-per-page", "1000", "-page-token", token)
			if want := min(1000, all-len(paged)); len(ids) != want {
				t.Fatalf("%s: page %d has %d entries, want %d", name, pages, len(ids), want)
			}
			paged, token = append(paged, ids...), next
		}
		if strings.Join(paged, " ") != strings.Join(whole, " ") {
			t.Errorf("%s: the pages are not the list", name)
		}
	}
}
