package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pannier/pannier/test/lib/testhost"
)

// state is what there is, by subject, without what may differ: times, indexes, and device numbers.
type state map[string][]string

func (s state) String() string {
	var b strings.Builder
	for _, about := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&b, "  %s:\n", about)
		for _, line := range s[about] {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	return b.String()
}

// differs lists what one state has and the other has not.
func (s state) differs(want state) string {
	var b strings.Builder
	for _, about := range slices.Sorted(maps.Keys(want)) {
		is, shall := s[about], want[about]
		if slices.Equal(is, shall) {
			continue
		}
		fmt.Fprintf(&b, "  %s:\n", about)
		for _, line := range is {
			if !slices.Contains(shall, line) {
				fmt.Fprintf(&b, "    + %s\n", line)
			}
		}
		for _, line := range shall {
			if !slices.Contains(is, line) {
				fmt.Fprintf(&b, "    - %s\n", line)
			}
		}
		if len(is) != len(shall) {
			fmt.Fprintf(&b, "    %d of them, not %d\n", len(is), len(shall))
		}
	}
	return b.String()
}

// look reads the present state, then the processes, which may come back a moment later.
func (r *rig) look() state {
	s := state{
		"claims":       r.claims(),
		"mounts":       r.mounts(),
		"loop devices": r.loops(),
		"directories":  r.directories(),
		"journal":      r.journal(),
	}
	r.settle()
	s["the driver's own list"] = r.listed()
	if r.ephemeral { // csi-local, whose list has no ephemeral volumes
		kept, _ := filepath.Glob(r.h.Path("data/volumes/volumes/*"))
		for _, path := range kept {
			s["the driver's files"] = append(s["the driver's files"], named(path))
		}
	}
	if r.mesh != nil {
		r.lookAtMesh(s)
	}
	return s
}

// claims are the volumes in the ledger with their claims: one line each.
func (r *rig) claims() (out []string) {
	var all struct{ Volumes []map[string]any }
	r.decode(&all, "volume", "status", "-o", "json")
	for _, v := range all.Volumes {
		claims, _ := v["claims"].([]any)
		delete(v, "claims")
		out = append(out, plain(v))
		for _, c := range claims {
			out = append(out, plain(c))
		}
	}
	return out
}

func (r *rig) decode(into any, args ...string) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.h.Run(args...)), into); err != nil {
		r.t.Fatalf("pannier %v: %v", args, err)
	}
}

// changing are keys whose values depend on time, order, or the driver's present health. A call in the middle of which
// something was killed stays unanswered.
var changing = regexp.MustCompile(
	`^(csi\.storage\.k8s\.io/pod\.uid|run|run_id|.*index|.*_at|boot_id|device|disk|unique|(nodes|controllers)_(healthy|expected)|driver_healthy|driver_message|provider|provider_version|start_time|started_on|pid|token|.*_sum|unanswered|admin_port|ready_port)$`)

var (
	loopNumber = regexp.MustCompile(`/dev/loop\d+`)
	driversID  = regexp.MustCompile(`\b(vol|snap|csi)-[0-9a-f]+\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)
)

// named removes names and numbers that a driver chooses anew each time.
func named(s string) string {
	return driversID.ReplaceAllString(loopNumber.ReplaceAllString(s, "/dev/loop"), "ID")
}

// seen is a path of the host as this test sees it.
func (r *rig) seen(path string) string {
	if r.h.Namespace == 0 {
		return path
	}
	return fmt.Sprintf("/proc/%d/root%s", r.h.Namespace, path)
}

// plain is a JSON value without what may differ.
func plain(v any) string {
	raw, err := json.Marshal(without(v))
	if err != nil {
		panic(err)
	}
	return named(string(raw))
}

func without(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if changing.MatchString(key) {
				delete(v, key)
			} else {
				v[key] = without(value)
			}
		}
	case []any:
		for n := range v {
			v[n] = without(v[n])
		}
	}
	return v
}

// mounts are those below the host's directory, except the secrets' tmpfs, which the agent unmounts
// at its own end.
func (r *rig) mounts() (out []string) {
	table := "/proc/self/mountinfo"
	if r.h.Namespace != 0 {
		table = fmt.Sprintf("/proc/%d/mountinfo", r.h.Namespace)
	}
	f, err := os.Open(table)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	found, err := mountinfo.GetMountsFromReader(f, mountinfo.PrefixFilter(r.h.Dir))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, m := range found {
		if m.Mountpoint == r.h.SecretsDir() {
			continue
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(r.seen(m.Mountpoint), &fs); err != nil {
			r.t.Fatal(err)
		}
		out = append(out, named(fmt.Sprintf("%s: %s of %s %s (%s; %s), %d blocks", m.Mountpoint, m.FSType, m.Source, m.Root,
			m.Options, m.VFSOptions, fs.Blocks)))
	}
	slices.Sort(out)
	return out
}

// loops are the backing files of loop devices below the host's directory.
func (r *rig) loops() (out []string) {
	for _, dev := range r.h.Loops() {
		file, err := os.ReadFile("/sys/block/" + filepath.Base(dev) + "/loop/backing_file")
		if err != nil {
			continue // it disappeared this moment
		}
		out = append(out, named(strings.TrimSpace(string(file))))
	}
	slices.Sort(out)
	return out
}

// directories are those made for mounts.
func (r *rig) directories() (out []string) {
	for _, d := range []string{front, behind} {
		for _, kind := range []string{"staging", "per-workload"} {
			dir := r.h.Path(filepath.Join("data/csi", d, kind))
			_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
				if err == nil {
					out = append(out, named(path))
				}
				if e != nil && e.IsDir() && strings.Count(strings.TrimPrefix(path, dir), "/") >= 5 {
					return fs.SkipDir // a volume's own files
				}
				return nil
			})
		}
	}
	return out
}

// journal is all records but the boot's, once no bootstrap is to be made again: a sync with Consul may ask for that at
// any time.
func (r *rig) journal() (out []string) {
	r.h.Eventually("no bootstrap is to be made again", func() error {
		out = r.records()
		if n := slices.IndexFunc(out, func(record string) bool { return strings.Contains(record, `"remake":`) }); n >= 0 {
			return errors.New(out[n])
		}
		return nil
	})
	return out
}

// records are read from a copy: the host has the journal open, and does not write while it is idle.
func (r *rig) records() (out []string) {
	dir, err := os.MkdirTemp(r.h.Dir, "journal-")
	if err != nil {
		r.t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var db *badger.DB
	r.h.Eventually("a copy of the journal is opened", func() error { // a table may disappear while it is copied
		defer func() {
			if db == nil {
				_ = os.RemoveAll(dir + "/journal")
			}
		}()
		if msg, err := exec.Command("cp", "-r", "--sparse=always", r.h.Path("data/journal"),
			dir).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, msg)
		}
		// with the host's own options (host/internal/workload/journal)
		opened, err := badger.Open(badger.DefaultOptions(dir + "/journal").WithLogger(nil).WithMetricsEnabled(false).
			WithCompression(options.None).WithMemTableSize(8 << 20).WithValueThreshold(64 << 10).WithNumMemtables(2).
			WithBlockCacheSize(0).WithIndexCacheSize(1 << 20).WithValueLogFileSize(16 << 20).WithNumCompactors(2))
		if err != nil {
			return err
		}
		db = opened
		return nil
	})
	defer db.Close()
	err = db.View(func(txn *badger.Txn) error {
		it := txn.NewIterator(badger.DefaultIteratorOptions)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			key := strings.ReplaceAll(string(it.Item().Key()), "\x00", " ")
			if strings.HasPrefix(key, "boot ") || key == " digest" {
				continue
			}
			var v any
			if err := it.Item().Value(func(raw []byte) error { return json.Unmarshal(raw, &v) }); err != nil {
				return err
			}
			forgetDigests(v)
			out = append(out, key+": "+plain(v))
		}
		return nil
	})
	if err != nil {
		r.t.Fatalf("read a copy of the journal: %v", err)
	}
	return out
}

// forgetDigests removes what a sync with Consul adds to a record: that may be two minutes after the start.
func forgetDigests(record any) {
	fields, _ := record.(map[string]any)
	services, _ := fields["services"].([]any)
	for _, s := range services {
		if s, ok := s.(map[string]any); ok {
			delete(s, "proxy_digest")
		}
	}
}

// listed is what the driver itself lists as volumes and snapshots.
func (r *rig) listed() (out []string) {
	conn, err := grpc.NewClient(r.endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testhost.Wait)
	defer cancel()
	volumes, err := csi.NewControllerClient(conn).ListVolumes(ctx, &csi.ListVolumesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return []string{err.Error()}
	}
	for _, e := range volumes.GetEntries() {
		line := fmt.Sprintf("volume ID of %d bytes", e.GetVolume().GetCapacityBytes())
		if !r.forgets {
			line += fmt.Sprintf(", attached to %q", e.GetStatus().GetPublishedNodeIds())
		}
		out = append(out, line)
	}
	snapshots, err := csi.NewControllerClient(conn).ListSnapshots(ctx, &csi.ListSnapshotsRequest{})
	if err != nil {
		return append(out, err.Error())
	}
	for range snapshots.GetEntries() {
		out = append(out, "snapshot")
	}
	slices.Sort(out)
	return out
}
