// This file is empty: with it, the compiler accepts the declaration of auxiliaryVector, which has no body.
