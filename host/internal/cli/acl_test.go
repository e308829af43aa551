package cli

import (
	"slices"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// The program must not inherit the operator's rights.
func TestProgramsAreNotGivenTheCallersToken(t *testing.T) {
	t.Setenv(tokenEnv, "the-operators")
	t.Setenv("KEPT", "yes")
	env := environment(&hostv1.Workload{Spec: &hostv1.WorkloadSpec{Id: "web"}}, "", nil, nil)
	if slices.ContainsFunc(env, func(kv string) bool { return strings.Contains(kv, "the-operators") }) ||
		!slices.Contains(env, "KEPT=yes") {
		t.Errorf("a program's environment has %q", env)
	}
}
