"""Operations: asynchronous verbs, waited for."""
