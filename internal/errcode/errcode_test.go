package errcode_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/pannier/pannier/internal/errcode"
)

func TestOf(t *testing.T) {
	var (
		missing = errcode.NotFound.New("missing")
		other   = errcode.NotFound.New("missing")
		busy    = errcode.Unavailable.New("busy")
		used    = errcode.FailedPrecondition.New("used")
	)
	for name, row := range map[string]struct {
		err  error
		want errcode.Code
	}{
		"none":             {nil, 0},
		"without a code":   {errors.New("missing"), 0},
		"itself":           {missing, errcode.NotFound},
		"wrapped":          {fmt.Errorf("stage: %w", missing), errcode.NotFound},
		"retry before why": {fmt.Errorf("%w: %w", used, errors.Join(missing, busy)), errcode.Unavailable},
	} {
		if got, ok := errcode.Of(row.err); got != row.want || ok != (row.want != 0) {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
	if errors.Is(missing, other) {
		t.Error("two sentinels are the same")
	}
}
