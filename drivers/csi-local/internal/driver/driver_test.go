package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/pannier/pannier/drivers/csi-local/internal/store"
)

func TestChooseCapacity(t *testing.T) {
	const k = 4096
	for _, tc := range []struct {
		required, limit, minimum, want int64
		code                           codes.Code
	}{
		{0, 0, k, 100 * k, codes.OK},
		{0, 50 * k, k, 50 * k, codes.OK},
		{0, 50*k + 1, k, 50 * k, codes.OK},
		{10 * k, 0, k, 10 * k, codes.OK},
		{10*k + 1, 0, k, 11 * k, codes.OK},
		{10*k + 1, 10*k + 2, k, 0, codes.OutOfRange},
		{10*k + 1, 10*k + 512, k, 10*k + 512, codes.OK},
		{10*k + 1, 11 * k, k, 11 * k, codes.OK},
		{10_000_000_000, 10_000_000_000, k, 10_000_000_000, codes.OK},
		{500_000_000, 500_000_000, k, 0, codes.OutOfRange},
		{500_000_000, 500_000_256, k, 500_000_256, codes.OK},
		{0, 512, 512, 512, codes.OK},
		{k, 0, 10 * k, 10 * k, codes.OK},
		{k, 5 * k, 10 * k, 0, codes.OutOfRange},
		{10, 5, k, 0, codes.OutOfRange},
		{-1, 0, k, 0, codes.OutOfRange},
		{0, -1, k, 0, codes.OutOfRange},
		{1<<63 - 1, 0, k, 0, codes.OutOfRange},
	} {
		got, err := chooseCapacity(&csi.CapacityRange{RequiredBytes: tc.required, LimitBytes: tc.limit}, tc.minimum, 100*k)
		if got != tc.want || status.Code(err) != tc.code {
			t.Errorf("%+v: got %d, %v", tc, got, err)
		}
	}
	exact := &csi.CapacityRange{RequiredBytes: 500_000_000, LimitBytes: 500_000_000}
	if _, err := chooseCapacity(exact, k, k); err == nil ||
		!strings.Contains(err.Error(), "raise limit_bytes (capacity_max) to 500000256") {
		t.Errorf("no multiple of a sector: %v", err)
	}
	if got, err := chooseCapacity(nil, k, 100*k); got != 100*k || err != nil {
		t.Errorf("no range: %d, %v", got, err)
	}
}

func TestDiskFits(t *testing.T) {
	d := disk{total: 100, available: 40}
	for _, tc := range []struct {
		size, extra int64
		code        codes.Code
	}{
		{40, 40, codes.OK}, {41, 41, codes.ResourceExhausted}, {100, 10, codes.OK}, {101, 10, codes.OutOfRange},
	} {
		if err := d.fits(tc.size, tc.extra); status.Code(err) != tc.code {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

// TestPagesAreTheWholeList reads lists of any length in pages of any size. The last item of each page is
// deleted before the next page is read.
func TestPagesAreTheWholeList(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var ids []string
		for i := range rapid.IntRange(0, 20).Draw(rt, "ids") {
			ids = append(ids, store.VolumeID(fmt.Sprint(i)))
		}
		slices.Sort(ids)
		want, left := slices.Clone(ids), slices.Clone(ids)
		limit := rapid.Int32Range(0, 7).Draw(rt, "limit")
		var got []string
		for token := ""; ; {
			entries, next, err := page(left, &csi.ListVolumesRequest{StartingToken: token, MaxEntries: limit},
				store.IsVolumeID, readID)
			if err != nil || (limit > 0 && len(entries) > int(limit)) {
				rt.Fatalf("%d entries, %v", len(entries), err)
			}
			got = append(got, entries...)
			if next == "" {
				break
			}
			token = next
			left = slices.DeleteFunc(slices.Clone(left), func(id string) bool { return id == token })
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("got %v, want %v", got, want)
		}
	})
	if _, _, err := page(nil, &csi.ListVolumesRequest{StartingToken: "nonsense"}, store.IsVolumeID,
		readID); status.Code(err) != codes.Aborted {
		t.Errorf("bad token: %v", err)
	}
	if _, _, err := page(nil, &csi.ListVolumesRequest{MaxEntries: -1}, store.IsVolumeID,
		readID); status.Code(err) != codes.InvalidArgument {
		t.Errorf("negative limit: %v", err)
	}
}

func readID(id string) (string, error) { return id, nil }

// A page costs what it lists, not what there is: a record that cannot be read is an error of its own page only.
func TestDamagedRecordInAPage(t *testing.T) {
	dir := t.TempDir()
	st, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	d := controller{Driver: New("1", "n", st, hclog.NewNullLogger())}
	ids := []string{store.SnapshotID("a"), store.SnapshotID("b"), store.SnapshotID("c")}
	slices.Sort(ids)
	for _, id := range ids[:2] {
		addSnapshot(t, dir, id, fmt.Sprintf(`{"id":%q}`, id))
	}
	addSnapshot(t, dir, ids[2], "{damaged")
	first, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{MaxEntries: 1})
	if err != nil || len(first.GetEntries()) != 1 || first.GetNextToken() != ids[0] {
		t.Errorf("the first page is %v, %v", first, err)
	}
	if _, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{StartingToken: ids[1]}); err == nil {
		t.Error("a record that cannot be read is not reported")
	}
}

func addSnapshot(t *testing.T, dir, id, record string) {
	t.Helper()
	item := filepath.Join(dir, "snapshots", id)
	if err := os.MkdirAll(item, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"record.json": record, id + ".img": ""} {
		if err := os.WriteFile(filepath.Join(item, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFlight(t *testing.T) {
	var f flight
	end, err := f.begin("Create", "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.begin("Delete", "c", "b"); status.Code(err) != codes.Aborted ||
		!strings.Contains(err.Error(), "Create") {
		t.Errorf("got %v", err)
	}
	if endC, err := f.begin("Delete", "c"); err != nil {
		t.Errorf("a refused operation took what it could get: %v", err)
	} else {
		endC()
	}
	end()
	if _, err := f.begin("Delete", "b", "a"); err != nil {
		t.Error(err)
	}
}

func TestFailed(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want codes.Code
	}{
		{nil, codes.OK},
		{errors.New("x"), codes.Internal},
		{fmt.Errorf("x: %w", context.Canceled), codes.Canceled},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{fmt.Errorf("x: %w", syscall.ENOSPC), codes.ResourceExhausted},
		{fmt.Errorf("x: %w", status.Error(codes.OutOfRange, "y")), codes.OutOfRange},
		{errors.Join(status.Error(codes.FailedPrecondition, "y"), errors.New("z")), codes.FailedPrecondition},
	} {
		if got := status.Code(failed(tc.err)); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.err, got, tc.want)
		}
	}
}

func TestParseCapability(t *testing.T) {
	mode := func(m csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability_AccessMode {
		return &csi.VolumeCapability_AccessMode{Mode: m}
	}
	single := mode(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	mount := func(m *csi.VolumeCapability_MountVolume) *csi.VolumeCapability {
		return &csi.VolumeCapability{AccessMode: single, AccessType: &csi.VolumeCapability_Mount{Mount: m}}
	}
	block := func(m *csi.VolumeCapability_AccessMode) *csi.VolumeCapability {
		return &csi.VolumeCapability{
			AccessMode: m,
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		}
	}
	for _, tc := range []struct {
		cap  *csi.VolumeCapability
		want codes.Code // of the node service
	}{
		{nil, codes.InvalidArgument},
		{&csi.VolumeCapability{AccessMode: single}, codes.InvalidArgument},
		{block(nil), codes.InvalidArgument},
		{block(single), codes.OK},
		{block(mode(csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY)), codes.OK},
		{block(mode(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)), codes.OK},
		{block(mode(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER)), codes.OK},
		{block(mode(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)), codes.OK},
		{block(mode(csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER)), codes.FailedPrecondition},
		{block(mode(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)), codes.FailedPrecondition},
		{block(mode(99)), codes.FailedPrecondition},
		{mount(nil), codes.InvalidArgument},
		{mount(&csi.VolumeCapability_MountVolume{}), codes.OK},
		{mount(&csi.VolumeCapability_MountVolume{FsType: "ntfs"}), codes.FailedPrecondition},
		{mount(&csi.VolumeCapability_MountVolume{MountFlags: []string{"bind"}}), codes.InvalidArgument},
		{mount(&csi.VolumeCapability_MountVolume{VolumeMountGroup: "0"}), codes.OK},
		{mount(&csi.VolumeCapability_MountVolume{VolumeMountGroup: "-1"}), codes.InvalidArgument},
		{mount(&csi.VolumeCapability_MountVolume{VolumeMountGroup: "4294967295"}), codes.InvalidArgument},
	} {
		if _, err := nodeCapability(tc.cap); status.Code(err) != tc.want {
			t.Errorf("%v: %v, want %s", tc.cap, err, tc.want)
		}
	}
}

func TestParseCreate(t *testing.T) {
	mount := func(fsType string) *csi.VolumeCapability {
		return &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}},
		}
	}
	ok := func() *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: []*csi.VolumeCapability{mount("ext4")}}
	}
	for _, tc := range []struct {
		words  string
		change func(*csi.CreateVolumeRequest)
	}{
		{"", func(*csi.CreateVolumeRequest) {}},
		{"name: it is missing", func(r *csi.CreateVolumeRequest) { r.Name = "" }},
		{"129 bytes", func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("x", 129) }},
		{"control character", func(r *csi.CreateVolumeRequest) { r.Name = "a\nb" }},
		{"volume_capabilities are missing", func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = nil }},
		{"one file system", func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = append(r.VolumeCapabilities,
				mount("xfs"))
		}},
		{
			`parameter "fstype" is unknown`,
			func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"fstype": "ext4"} },
		},
		{`parameter "fsType" is xfs`, func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"fsType": "xfs"} }},
		{"mutable_parameters", func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"a": "b"} }},
		{"volume_content_source", func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} }},
	} {
		req := ok()
		tc.change(req)
		_, err := parseCreate(req)
		if tc.words == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%q: got %v", tc.words, err)
		}
	}
}
