package command

import (
	"encoding/json"
	"fmt"
	"slices"
)

// outcome is what became of a command or a query, as it travels between agents.
type outcome struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *failure        `json:"error,omitempty"`
}

// EncodeOutcome writes down what became of a command, for another agent. What a caller asks
// of the error with errors.Is and errors.As can be asked of the one that DecodeOutcome
// returns too, as far as it is of this package, of cluster/claim or of cluster/acl.
func EncodeOutcome(result any, err error) ([]byte, error) {
	if err != nil {
		return json.Marshal(outcome{Error: failureOf(err)})
	}
	body, err := json.Marshal(result)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", result, err)
	}
	// What is encoded already, json.Marshal would look at again.
	return slices.Concat([]byte(`{"result":`), body, []byte("}")), nil
}

// DecodeOutcome reads what became of c. Any bytes may be given. The error is the
// command's, or ErrMalformed.
func DecodeOutcome(c Command, data []byte) (result any, err error) {
	result, refused, err := kinds[kindOf(c)].result(data)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: outcome of %T: %w", ErrMalformed, c, err)
	case refused != nil:
		return nil, refused.err()
	default:
		return result, nil
	}
}
