package claim_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
)

const id = "01234567-89ab-4cde-8f01-23456789abcd"

func token() claim.Token {
	return claim.Token{
		ID: id, Workload: claim.WorkloadRef{
			Namespace: "default",
			ID:        "w",
		}, Node: "n", Service: "web", Consul: "default", CreateIndex: 7,
	}
}

func TestBelongsTo(t *testing.T) {
	runs := claim.Workload{Ref: token().Workload, Node: "n", Status: claim.Running, CreateIndex: 7}
	for name, row := range map[string]struct {
		change func(*claim.Workload)
		want   bool
	}{
		"noted with its start":     {func(*claim.Workload) {}, true},
		"noted later":              {func(w *claim.Workload) { w.CreateIndex = 3 }, true},
		"of the run before":        {func(w *claim.Workload) { w.CreateIndex = 8 }, false},
		"ended":                    {func(w *claim.Workload) { w.Status = claim.Ended }, false},
		"on another node":          {func(w *claim.Workload) { w.Node = "m" }, false},
		"another one":              {func(w *claim.Workload) { w.Ref.ID = "x" }, false},
		"none that is known":       {func(w *claim.Workload) { *w = claim.Workload{} }, false},
		"a record of no known end": {func(w *claim.Workload) { w.Status = "" }, false},
	} {
		w := runs
		row.change(&w)
		if one := token(); one.BelongsTo(w) != row.want {
			t.Errorf("%s: %v", name, !row.want)
		}
	}
}

func TestValidateToken(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*claim.Token)
		field  string
	}{
		"whole":           {func(*claim.Token) {}, ""},
		"answered":        {func(c *claim.Token) { c.Accessor = id }, ""},
		"no id":           {func(c *claim.Token) { c.ID = "" }, "id"},
		"id in capitals":  {func(c *claim.Token) { c.ID = strings.ToUpper(id) }, "id"},
		"id with an end":  {func(c *claim.Token) { c.ID = id + "\n" }, "id"},
		"a bad accessor":  {func(c *claim.Token) { c.Accessor = "x" }, "accessor"},
		"no node":         {func(c *claim.Token) { c.Node = "" }, "node"},
		"no service":      {func(c *claim.Token) { c.Service = "" }, "service"},
		"service of path": {func(c *claim.Token) { c.Service = "a/b" }, "service"},
		"no Consul":       {func(c *claim.Token) { c.Consul = "" }, "consul"},
		"no workload":     {func(c *claim.Token) { c.Workload.ID = "" }, "id"},
	} {
		one := token()
		row.change(&one)
		err := one.Validate()
		var field *claim.FieldError
		if errors.As(err, &field) != (row.field != "") || field != nil && field.Field != row.field {
			t.Errorf("%s: %v, want one about %q", name, err, row.field)
		}
	}
}

func TestValidateSigningKey(t *testing.T) {
	whole := claim.SigningKey{ID: "k", Public: []byte("{}"), Sealed: []byte{1}}
	if err := whole.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*claim.SigningKey){
		"no id":     func(k *claim.SigningKey) { k.ID = "" },
		"no public": func(k *claim.SigningKey) { k.Public = nil },
		"no sealed": func(k *claim.SigningKey) { k.Sealed = nil },
		"too long":  func(k *claim.SigningKey) { k.Sealed = make([]byte, 5<<10) },
	} {
		k := whole
		change(&k)
		if err := k.Validate(); !errors.Is(err, claim.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
