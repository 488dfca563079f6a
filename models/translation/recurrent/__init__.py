"""The LSTM encoder-decoder with dot attention (Luong et al. 2015; Snell et al. 2021).

Importing it makes the networks known to transformers' Auto classes, which find them by a folder's configuration.
"""
