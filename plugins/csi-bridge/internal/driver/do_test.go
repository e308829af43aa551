package driver

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestJudge calls judge with all outcomes of attempts.
func TestJudge(t *testing.T) {
	answered := func(code codes.Code) *callError {
		return &callError{method: StageVolume.method, status: status.New(code, "answered"), sent: true, answered: true}
	}
	lost := &callError{method: StageVolume.method, status: status.New(codes.Unavailable, "EOF"), sent: true}
	unsent := &callError{method: StageVolume.method, status: status.New(codes.DeadlineExceeded, "too late")}
	unreachable := &callError{method: StageVolume.method, status: status.New(codes.Unavailable, "no such file")}
	question := &callError{method: GetNodeCaps.method, status: status.New(codes.Unavailable, "EOF"), sent: true}
	for name, tc := range map[string]struct {
		attempts []error
		last     error
		code     codes.Code
	}{
		"answered":             {[]error{answered(codes.NotFound)}, answered(codes.NotFound), codes.NotFound},
		"too late for another": {[]error{answered(codes.Aborted), unsent}, answered(codes.Aborted), codes.Aborted},
		"never sent":           {[]error{unsent}, unsent, codes.DeadlineExceeded},
		"unreachable":          {[]error{unreachable, unreachable}, unreachable, codes.Unavailable},
		"lost, then away":      {[]error{lost, unreachable}, unreachable, codes.DeadlineExceeded},
		"lost, then refused":   {[]error{lost, answered(codes.NotFound)}, answered(codes.NotFound), codes.NotFound},
		"lost before the call": {[]error{question}, question, codes.Unavailable},
		"the bridge's own no": {
			[]error{status.Error(codes.Unimplemented, "cannot")},
			status.Error(codes.Unimplemented, "cannot"), codes.Unimplemented,
		},
		"the driver's deadline": {
			[]error{answered(codes.DeadlineExceeded), answered(codes.Aborted)},
			answered(codes.Aborted),
			codes.DeadlineExceeded,
		},
	} {
		r := &run{op: Op{RPC: StageVolume}, caller: t.Context()}
		for _, err := range tc.attempts {
			_ = r.judge(err)
		}
		if r.last.Error() != tc.last.Error() || status.Code(r.last) != status.Code(tc.last) || r.code() != tc.code {
			t.Errorf("%s: ends with %s by %v, want %s by %v", name, r.code(), r.last, tc.code, tc.last)
		}
	}
}

// TestUncertain: what a driver gave up on, or never answered, it may have done.
func TestUncertain(t *testing.T) {
	for code, want := range map[codes.Code]bool{
		codes.DeadlineExceeded: true, codes.Canceled: true,
		codes.NotFound: false, codes.Aborted: false, codes.Internal: false,
	} {
		answered := &callError{method: StageVolume.method, status: status.New(code, "answered"), sent: true, answered: true}
		r := &run{op: Op{RPC: StageVolume}, caller: t.Context(), attempts: 1}
		_ = r.judge(answered)
		if text := r.explain().Error(); strings.Contains(text, "the outcome is unknown") != want {
			t.Errorf("the driver answered %s: %s", code, text)
		}
		lost := &callError{method: StageVolume.method, status: answered.status, sent: true}
		unsent := &callError{method: StageVolume.method, status: answered.status}
		if !lost.uncertain() || unsent.uncertain() {
			t.Errorf("%s without an answer: sent %t, not sent %t", code, lost.uncertain(), unsent.uncertain())
		}
	}
}

// TestPrintable checks that trace output contains no secrets even without redaction.
func TestPrintable(t *testing.T) {
	capability := &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
		FsType: "ext4", MountFlags: []string{"s3same"},
	}}}
	stage := &csi.NodeStageVolumeRequest{
		VolumeId: "v", VolumeCapability: capability,
		Secrets: map[string]string{"k": "hunter2"},
	}
	create := &csi.CreateVolumeRequest{
		Name: "v", VolumeCapabilities: []*csi.VolumeCapability{capability},
		Secrets: map[string]string{"k": "hunter2"},
	}
	for _, msg := range []any{stage, create} {
		got := sanitized(msg)
		if strings.Contains(got, "s3same") || strings.Contains(got, "hunter2") || !strings.Contains(got, "ext4") ||
			!strings.Contains(got, redacted) {
			t.Errorf("got %s", got)
		}
	}
	if capability.GetMount().GetMountFlags()[0] != "s3same" {
		t.Error("the request itself was changed")
	}
}
